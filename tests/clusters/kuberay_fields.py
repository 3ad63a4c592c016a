"""The fields that clusters/kuberay.yaml uses, as they are documented.

`ray.io/v1`: KubeRay CRD API reference, KubeRay v1.7.1
(https://docs.ray.io/en/master/kuberay/references/api.html).
The rest: Kubernetes API v1.28, to which that reference links
(https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.28/).

A type is Python's, a set of the words that are allowed, the name of another entry, [a list of
them], or {str: a mapping to them}.
"""

from typing import Any

FIELDS: dict[str, dict[str, Any]] = {
    # ------------------------------------------------------------ KubeRay
    "RayCluster": {
        "apiVersion": {"ray.io/v1"},
        "kind": {"RayCluster"},
        "metadata": "ObjectMeta",
        "spec": "RayClusterSpec",
    },
    "RayClusterSpec": {
        "authOptions": "AuthOptions",
        "autoscalerOptions": "AutoscalerOptions",
        "enableInTreeAutoscaling": bool,
        "headGroupSpec": "HeadGroupSpec",
        "rayVersion": str,
        "workerGroupSpecs": ["WorkerGroupSpec"],
    },
    "AuthOptions": {"mode": {"disabled", "token"}, "secretName": str},
    "AutoscalerOptions": {"idleTimeoutSeconds": int, "securityContext": "SecurityContext"},
    "HeadGroupSpec": {
        "rayStartParams": {str: str},
        "serviceType": {"ClusterIP", "NodePort", "LoadBalancer", "ExternalName"},
        "template": "PodTemplateSpec",
    },
    "WorkerGroupSpec": {
        "groupName": str,
        "maxReplicas": int,
        "minReplicas": int,
        "rayStartParams": {str: str},
        "replicas": int,
        "template": "PodTemplateSpec",
    },
    "RayJob": {
        "apiVersion": {"ray.io/v1"},
        "kind": {"RayJob"},
        "metadata": "ObjectMeta",
        "spec": "RayJobSpec",
    },
    "RayJobSpec": {
        "clusterSelector": {str: str},
        "entrypoint": str,
        "submissionMode": {"K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"},
    },
    # ------------------------------------------------------------ Kubernetes
    "ObjectMeta": {"name": str, "namespace": str, "annotations": {str: str}},
    "ServiceAccount": {
        "apiVersion": {"v1"},
        "kind": {"ServiceAccount"},
        "metadata": "ObjectMeta",
        "automountServiceAccountToken": bool,
    },
    "NetworkPolicy": {
        "apiVersion": {"networking.k8s.io/v1"},
        "kind": {"NetworkPolicy"},
        "metadata": "ObjectMeta",
        "spec": "NetworkPolicySpec",
    },
    "NetworkPolicySpec": {
        "ingress": ["NetworkPolicyIngressRule"],
        "podSelector": "LabelSelector",
        "policyTypes": [{"Ingress", "Egress"}],
    },
    "NetworkPolicyIngressRule": {"from": ["NetworkPolicyPeer"], "ports": ["NetworkPolicyPort"]},
    "NetworkPolicyPeer": {"namespaceSelector": "LabelSelector", "podSelector": "LabelSelector"},
    "NetworkPolicyPort": {"port": int, "protocol": {"TCP", "UDP", "SCTP"}},
    "LabelSelector": {"matchLabels": {str: str}},
    "PodTemplateSpec": {"spec": "PodSpec"},
    "PodSpec": {
        "automountServiceAccountToken": bool,
        "containers": ["Container"],
        "initContainers": ["Container"],
        "nodeSelector": {str: str},
        "securityContext": "PodSecurityContext",
        "serviceAccountName": str,
        "terminationGracePeriodSeconds": int,
        "tolerations": ["Toleration"],
        "volumes": ["Volume"],
    },
    "PodSecurityContext": {
        "fsGroup": int,
        "runAsGroup": int,
        "runAsNonRoot": bool,
        "runAsUser": int,
    },
    "Toleration": {
        "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
        "key": str,
        "operator": {"Exists", "Equal"},
    },
    "Volume": {"name": str, "emptyDir": "EmptyDirVolumeSource"},
    "EmptyDirVolumeSource": {"sizeLimit": str},
    "Container": {
        "command": [str],
        "env": ["EnvVar"],
        "image": str,
        "lifecycle": "Lifecycle",
        "name": str,
        "ports": ["ContainerPort"],
        "resources": "ResourceRequirements",
        "securityContext": "SecurityContext",
        "volumeMounts": ["VolumeMount"],
    },
    "Lifecycle": {"preStop": "LifecycleHandler"},
    "LifecycleHandler": {"exec": "ExecAction"},
    "ExecAction": {"command": [str]},
    "EnvVar": {"name": str, "value": str},
    "ContainerPort": {"containerPort": int, "name": str},
    "ResourceRequirements": {"limits": {str: str}, "requests": {str: str}},
    "SecurityContext": {
        "allowPrivilegeEscalation": bool,
        "capabilities": "Capabilities",
        "runAsNonRoot": bool,
        "seccompProfile": "SeccompProfile",
    },
    "Capabilities": {"drop": [str]},
    "SeccompProfile": {"type": {"RuntimeDefault", "Unconfined", "Localhost"}},
    "VolumeMount": {"mountPath": str, "name": str},
}
REQUIRED = {
    "RayClusterSpec": {"headGroupSpec"},
    "HeadGroupSpec": {"rayStartParams", "template"},
    "WorkerGroupSpec": {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"},
    "PodSpec": {"containers"},
    "Container": {"name", "image"},
    "EnvVar": {"name"},
    "VolumeMount": {"mountPath", "name"},
    "ContainerPort": {"containerPort"},
    "NetworkPolicySpec": {"podSelector"},
    "SeccompProfile": {"type"},
    "ObjectMeta": {"name"},
}

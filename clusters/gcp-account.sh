#!/usr/bin/env bash
# Prepare a Google Cloud project for `ray up clusters/gcp.yaml`: create the bucket, a network, and the
# permissions of head and workers. Without them, Ray uses the default network, where SSH is open to the
# world, and an account with permissions on the whole project.
# Safe to repeat: creates what is missing, and replaces the address from which SSH is allowed.
set -euo pipefail
if [ $# != 4 ]; then
  echo "usage: $0 PROJECT REGION BUCKET ADDRESS/32   (SSH is allowed from ADDRESS only)" >&2
  exit 2
fi
project=$1 region=$2 bucket=$3 ssh_from=$4
if ! [[ $ssh_from =~ ^([0-9]{1,3}\.){3}[0-9]{1,3}/32$ ]]; then
  echo "the address must be one IPv4 address with /32, not a range (got $ssh_from)" >&2
  exit 2
fi
run() { gcloud "$@" --project="$project" --quiet; }
exists() { run "$@" >/dev/null 2>&1; } # if this fails for another reason, `create` reports it
account() { echo "$1@$project.iam.gserviceaccount.com"; }

# Retry for about a minute: new accounts and roles can take that long to propagate through IAM.
retry() {
  for _ in {1..12}; do
    if run "$@"; then return; fi
    echo "retrying in 5 seconds: a new account or role may not have propagated yet" >&2
    sleep 5
  done
  run "$@"
}

run services enable compute.googleapis.com iam.googleapis.com cloudresourcemanager.googleapis.com \
  storage.googleapis.com

exists storage buckets describe "gs://$bucket" ||
  run storage buckets create "gs://$bucket" --location="$region" \
    --uniform-bucket-level-access --public-access-prevention
# Old versions are kept for 30 days; those of checkpoints, which runs replace after each epoch, for one.
run storage buckets update "gs://$bucket" --versioning --lifecycle-file=<(
  cat <<'RULES'
{"rule": [
  {"action": {"type": "Delete"}, "condition": {"daysSinceNoncurrentTime": 30}},
  {"action": {"type": "Delete"},
   "condition": {"daysSinceNoncurrentTime": 1, "matchesPrefix": ["results/work/"]}}
]}
RULES
)

# The network admits SSH from one address, and any traffic between its own nodes.
exists compute networks describe ascl-sweep ||
  run compute networks create ascl-sweep --subnet-mode=custom
exists compute networks subnets describe ascl-sweep --region="$region" ||
  run compute networks subnets create ascl-sweep --network=ascl-sweep --region="$region" --range=10.77.0.0/20
if exists compute firewall-rules describe ascl-sweep-ssh; then
  run compute firewall-rules update ascl-sweep-ssh --source-ranges="$ssh_from"
else
  run compute firewall-rules create ascl-sweep-ssh --network=ascl-sweep --direction=INGRESS \
    --allow=tcp:22 --source-ranges="$ssh_from" --target-tags=ascl-sweep
fi
exists compute firewall-rules describe ascl-sweep-inside ||
  run compute firewall-rules create ascl-sweep-inside --network=ascl-sweep --direction=INGRESS \
    --allow=tcp,udp,icmp --source-tags=ascl-sweep --target-tags=ascl-sweep

# The last account is Ray's: `ray up` (Ray 2.60) creates it with permissions on the whole project, even if
# no node uses it. Creating and disabling it first makes these permissions ineffective.
for who in ascl-sweep-head ascl-sweep-worker ray-autoscaler-sa-v1; do
  exists iam service-accounts describe "$(account $who)" || run iam service-accounts create $who
done
retry iam service-accounts disable "$(account ray-autoscaler-sa-v1)"

# The head writes the tables. A worker reads the store and writes the folders of its runs.
objects="projects/_/buckets/$bucket/objects"
grant() { # member, role, condition
  retry storage buckets add-iam-policy-binding "gs://$bucket" \
    --member="serviceAccount:$(account "$1")" --role="$2" --condition="$3"
}
grant ascl-sweep-head roles/storage.objectUser None
grant ascl-sweep-worker roles/storage.objectViewer None
grant ascl-sweep-worker roles/storage.objectUser \
  "title=work,expression=resource.name.startsWith('$objects/results/work/')"

# The head may start and delete nodes, and assign only the worker's account to them.
exists iam roles describe asclSweepHead ||
  run iam roles create asclSweepHead --title="Start and end workers" --permissions="$(
    printf '%s' compute.disks.create,compute.disks.setLabels,compute.images.useReadOnly, \
      compute.instances.create,compute.instances.delete,compute.instances.get,compute.instances.list, \
      compute.instances.setLabels,compute.instances.setMetadata,compute.instances.setServiceAccount, \
      compute.instances.setTags,compute.subnetworks.use,compute.subnetworks.useExternalIp, \
      compute.zoneOperations.get
  )"
retry projects add-iam-policy-binding "$project" --condition=None \
  --member="serviceAccount:$(account ascl-sweep-head)" --role="projects/$project/roles/asclSweepHead"
retry iam service-accounts add-iam-policy-binding "$(account ascl-sweep-worker)" \
  --member="serviceAccount:$(account ascl-sweep-head)" --role=roles/iam.serviceAccountUser
echo "now fill in clusters/gcp.yaml: project $project, region $region, results gs://$bucket/results" >&2

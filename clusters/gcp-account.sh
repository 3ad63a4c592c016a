#!/usr/bin/env bash
# What a cluster on Google Cloud needs in your project, made before `ray up clusters/gcp.yaml`: the
# bucket, a network, and the rights of head and workers. Left to itself Ray would take the default
# network, where SSH is open to the world, and an account with rights on the whole project.
# Run again, it makes what is missing and lets in the address that is given now, instead of the old one.
set -euo pipefail
if [ $# != 4 ]; then
  echo "usage: $0 PROJECT REGION BUCKET ADDRESS/32   (ADDRESS: the one that may log in)" >&2
  exit 2
fi
project=$1 region=$2 bucket=$3 ssh_from=$4
if ! [[ $ssh_from =~ ^([0-9]{1,3}\.){3}[0-9]{1,3}/32$ ]]; then
  echo "the address must be one IPv4 address with /32, got $ssh_from; ranges are refused" >&2
  exit 2
fi
run() { gcloud "$@" --project="$project" --quiet; }
there() { run "$@" >/dev/null 2>&1; } # if it fails for another reason, `create` says which
account() { echo "$1@$project.iam.gserviceaccount.com"; }

# For about a minute: so long it can take until all of IAM knows a new account or role.
patiently() {
  for _ in {1..12}; do
    if run "$@"; then return; fi
    echo "again in 5 seconds: what was just made may not be known everywhere yet" >&2
    sleep 5
  done
  run "$@"
}

run services enable compute.googleapis.com iam.googleapis.com cloudresourcemanager.googleapis.com \
  storage.googleapis.com

there storage buckets describe "gs://$bucket" ||
  run storage buckets create "gs://$bucket" --location="$region" \
    --uniform-bucket-level-access --public-access-prevention

# A network where nothing is open but SSH from one address, and Ray among its own machines.
there compute networks describe ascl-sweep ||
  run compute networks create ascl-sweep --subnet-mode=custom
there compute networks subnets describe ascl-sweep --region="$region" ||
  run compute networks subnets create ascl-sweep --network=ascl-sweep --region="$region" --range=10.77.0.0/20
if there compute firewall-rules describe ascl-sweep-ssh; then
  run compute firewall-rules update ascl-sweep-ssh --source-ranges="$ssh_from"
else
  run compute firewall-rules create ascl-sweep-ssh --network=ascl-sweep --direction=INGRESS \
    --allow=tcp:22 --source-ranges="$ssh_from" --target-tags=ascl-sweep
fi
there compute firewall-rules describe ascl-sweep-inside ||
  run compute firewall-rules create ascl-sweep-inside --network=ascl-sweep --direction=INGRESS \
    --allow=tcp,udp,icmp --source-tags=ascl-sweep --target-tags=ascl-sweep

# The last one is Ray's: `ray up` makes it and gives it rights on the whole project, whether it is used
# or not. It is there already, then, and switched off.
for who in ascl-sweep-head ascl-sweep-worker ray-autoscaler-sa-v1; do
  there iam service-accounts describe "$(account $who)" || run iam service-accounts create $who
done
patiently iam service-accounts disable "$(account ray-autoscaler-sa-v1)"

for who in ascl-sweep-head ascl-sweep-worker; do
  patiently storage buckets add-iam-policy-binding "gs://$bucket" \
    --member="serviceAccount:$(account $who)" --role=roles/storage.objectUser
done

# The head starts and ends machines, and may give them the worker's account only.
there iam roles describe asclSweepHead ||
  run iam roles create asclSweepHead --title="Start and end workers" --permissions="$(
    printf '%s' compute.disks.create,compute.disks.setLabels,compute.images.useReadOnly, \
      compute.instances.create,compute.instances.delete,compute.instances.get,compute.instances.list, \
      compute.instances.setLabels,compute.instances.setMetadata,compute.instances.setServiceAccount, \
      compute.instances.setTags,compute.subnetworks.use,compute.subnetworks.useExternalIp, \
      compute.zoneOperations.get
  )"
patiently projects add-iam-policy-binding "$project" --condition=None \
  --member="serviceAccount:$(account ascl-sweep-head)" --role="projects/$project/roles/asclSweepHead"
patiently iam service-accounts add-iam-policy-binding "$(account ascl-sweep-worker)" \
  --member="serviceAccount:$(account ascl-sweep-head)" --role=roles/iam.serviceAccountUser
echo "fill in clusters/gcp.yaml: project $project, region $region, results gs://$bucket/results" >&2

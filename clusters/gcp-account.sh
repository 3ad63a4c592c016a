#!/usr/bin/env bash
# What a cluster on Google Cloud needs in your project, made once, before `ray up clusters/gcp.yaml`:
# the bucket, a network, and the rights of head and workers. Left to itself Ray would take the default
# network, where SSH is open to the world, and an account with rights on the whole project.
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
account() { echo "$1@$project.iam.gserviceaccount.com"; }

run storage buckets create "gs://$bucket" --location="$region" \
  --uniform-bucket-level-access --public-access-prevention

# A network where nothing is open but SSH from one address, and Ray among its own machines.
run compute networks create ascl-sweep --subnet-mode=custom
run compute networks subnets create ascl-sweep --network=ascl-sweep --region="$region" --range=10.77.0.0/20
run compute firewall-rules create ascl-sweep-ssh --network=ascl-sweep --direction=INGRESS \
  --allow=tcp:22 --source-ranges="$ssh_from" --target-tags=ascl-sweep
run compute firewall-rules create ascl-sweep-inside --network=ascl-sweep --direction=INGRESS \
  --allow=tcp,udp,icmp --source-tags=ascl-sweep --target-tags=ascl-sweep

for who in head worker; do
  run iam service-accounts create "ascl-sweep-$who"
  run storage buckets add-iam-policy-binding "gs://$bucket" \
    --member="serviceAccount:$(account "ascl-sweep-$who")" --role=roles/storage.objectUser
done

# The head starts and ends machines, and may give them the worker's account only.
run iam roles create asclSweepHead --title="Start and end workers" --permissions="$(
  printf '%s' compute.disks.create,compute.disks.setLabels,compute.images.useReadOnly, \
    compute.instances.create,compute.instances.delete,compute.instances.get,compute.instances.list, \
    compute.instances.setLabels,compute.instances.setMetadata,compute.instances.setServiceAccount, \
    compute.instances.setTags,compute.subnetworks.use,compute.subnetworks.useExternalIp, \
    compute.zoneOperations.get
)"
run projects add-iam-policy-binding "$project" --condition=None \
  --member="serviceAccount:$(account ascl-sweep-head)" --role="projects/$project/roles/asclSweepHead"
run iam service-accounts add-iam-policy-binding "$(account ascl-sweep-worker)" \
  --member="serviceAccount:$(account ascl-sweep-head)" --role=roles/iam.serviceAccountUser

# `ray up` makes this account and gives it rights on the whole project, whether it is used or not.
# It is there already, then, and switched off.
run iam service-accounts create ray-autoscaler-sa-v1
run iam service-accounts disable "$(account ray-autoscaler-sa-v1)"
echo "fill in clusters/gcp.yaml: project $project, region $region, results gs://$bucket/results" >&2

#!/usr/bin/env bash
# Generates config/crds, or the directory in the first argument, from the API types of the kcp SDK.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The resources that all logical clusters serve. The packages below declare further resources, which
# are not served yet.
served=(
  apis.kcp.io_apibindings
  apis.kcp.io_apiconversions
  apis.kcp.io_apiexportendpointslices
  apis.kcp.io_apiexports
  apis.kcp.io_apiresourceschemas
  cache.kcp.io_cachedresourceendpointslices
  cache.kcp.io_cachedresources
  core.kcp.io_logicalclusters
  core.kcp.io_shards
  tenancy.kcp.io_workspaceauthenticationconfigurations
  tenancy.kcp.io_workspaces
  tenancy.kcp.io_workspacetypes
  topology.kcp.io_partitions
  topology.kcp.io_partitionsets
)

target="${1:-config/crds}"
scratch="$(mktemp -d)"
trap 'rm -rf "${scratch}"' EXIT

go tool -modfile=tools/go.mod controller-gen crd:crdVersions=v1 \
  paths=github.com/kcp-dev/sdk/apis/apis/v1alpha1 \
  paths=github.com/kcp-dev/sdk/apis/apis/v1alpha2 \
  paths=github.com/kcp-dev/sdk/apis/cache/v1alpha1 \
  paths=github.com/kcp-dev/sdk/apis/core/v1alpha1 \
  paths=github.com/kcp-dev/sdk/apis/tenancy/v1alpha1 \
  paths=github.com/kcp-dev/sdk/apis/topology/v1alpha1 \
  output:crd:artifacts:config="${scratch}"

mkdir -p "${target}"
rm -f "${target}"/*.yaml
for name in "${served[@]}"; do
  cp "${scratch}/${name}.yaml" "${target}/"
done

# kcp also serves cached resources and their slices under another name, which the SDK does not have
# yet. Otherwise, they are equal.
for name in cachedresourceendpointslices cachedresources; do
  sed -e 's/CachedResource/ClusterCachedResource/g' -e 's/cachedResource/clusterCachedResource/g' -e 's/cachedresource/clustercachedresource/g' \
    "${target}/cache.kcp.io_${name}.yaml" >"${target}/cache.kcp.io_cluster${name}.yaml"
done

# A field that kcp serves, but the types of the SDK do not have.
awk '
  /^ +served:$/ && !done {
    done = 1; indent = $0; sub(/served:$/, "", indent)
    print indent "selectableFields:"
    print indent "  description: |-"
    print indent "    selectableFields specifies paths to fields that may be used as field selectors."
    print indent "    A maximum of 8 selectable fields are allowed."
    print indent "  items:"
    print indent "    properties:"
    print indent "      jsonPath:"
    print indent "        description: |-"
    print indent "          jsonPath is a simple JSON path which is evaluated against each custom resource to produce a"
    print indent "          field selector value. It must point to a field of type string, boolean or integer."
    print indent "        type: string"
    print indent "    required:"
    print indent "    - jsonPath"
    print indent "    type: object"
    print indent "  type: array"
    print indent "  x-kubernetes-list-type: atomic"
  }
  { print }
' "${scratch}/apis.kcp.io_apiresourceschemas.yaml" >"${target}/apis.kcp.io_apiresourceschemas.yaml"

# Columns for the status and the annotations of shards, which the types of the SDK do not have.
awk '
  /^  - additionalPrinterColumns:$/ {
    print
    print "    - description: Whether the shard is ready; empty if it has never reported its status"
    print "      jsonPath: .status.conditions[?(@.type==\"Ready\")].status"
    print "      name: Ready"
    print "      type: string"
    print "    - description: Number of workspaces with a logical cluster on this shard"
    print "      jsonPath: .metadata.annotations['"'"'core\\.shardplane\\.io/workspaces'"'"']"
    print "      name: Workspaces"
    print "      type: string"
    print "    - description: Number of objects that the shard stores, without Events"
    print "      jsonPath: .metadata.annotations['"'"'core\\.shardplane\\.io/objects'"'"']"
    print "      name: Objects"
    print "      type: string"
    print "    - description: Used part of its etcd"
    print "      jsonPath: .metadata.annotations['"'"'core\\.shardplane\\.io/storage'"'"']"
    print "      name: Storage"
    print "      type: string"
    print "    - description: Reason why the shard is not ready"
    print "      jsonPath: .status.conditions[?(@.type==\"Ready\")].reason"
    print "      name: Reason"
    print "      priority: 1"
    print "      type: string"
    next
  }
  { print }
' "${scratch}/core.kcp.io_shards.yaml" >"${target}/core.kcp.io_shards.yaml"

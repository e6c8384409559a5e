#!/usr/bin/env bash
# Makes the data that TestDataOfThePreviousVersion opens, with the program of the
# version that is to be the previous one, which has just been started in this
# directory: shardplane dev --shards 1
set -e
P=${1:?URL of the front-proxy}
c() { curl -sS -k --cert .kcp/kcp-admin.crt --key .kcp/kcp-admin.key -H "Content-Type: application/yaml" "$@"; }
post() { c -o /dev/null -w "%{http_code} $1\n" "$P/clusters/$1" --data-binary @-; }
post root/apis/tenancy.kcp.io/v1alpha1/workspaces <<< '{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: kept}}'
for i in $(seq 100); do c $P/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces/kept | grep -q '"phase": "Ready"' && break; sleep 0.2; done
W=root:kept
post $W/apis/tenancy.kcp.io/v1alpha1/workspaces <<< '{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: below}}'
post $W/api/v1/namespaces/default/configmaps <<< '{apiVersion: v1, kind: ConfigMap, metadata: {name: kept, labels: {kept: "yes"}}, data: {written: before}}'
post $W/apis/apiextensions.k8s.io/v1/customresourcedefinitions <<'Y'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer}}}}
Y
sleep 3
post $W/apis/example.com/v1/namespaces/default/widgets <<< '{apiVersion: example.com/v1, kind: Widget, metadata: {name: kept}, spec: {size: 7}}'
post $W/api/v1/namespaces/default/serviceaccounts <<< '{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot}}'
post $W/api/v1/namespaces/default/secrets <<< '{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token, metadata: {name: robot-token, annotations: {kubernetes.io/service-account.name: robot}}}'
post $W/apis/rbac.authorization.k8s.io/v1/clusterroles <<< '{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: reader}, rules: [{apiGroups: ["", example.com], resources: [configmaps, widgets], verbs: [get, list]}]}'
post $W/apis/rbac.authorization.k8s.io/v1/clusterrolebindings <<< '{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: robot-reads}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}, subjects: [{kind: ServiceAccount, name: robot, namespace: default}]}'
post $W/apis/rbac.authorization.k8s.io/v1/clusterrolebindings <<< '{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: jane-enters}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:kcp:workspace:access"}, subjects: [{kind: User, name: jane, apiGroup: rbac.authorization.k8s.io}]}'
sleep 2
c $P/clusters/$W/api/v1/namespaces/default/secrets/robot-token |
  sed -n 's/^ *"token": "\(.*\)"$/\1/p' | base64 -d > token
openssl pkey -in .kcp/service-account.key -pubout -out service-account.pub
echo "Stop the cluster with Ctrl-C, and press Enter" && read -r
rm -f .kcp-0/data/etcd/member/wal/0.tmp
tar -C .kcp-0/data --sort=name --owner=0 --group=0 --mtime=@0 -cf - . | gzip -9n > data.tar.gz

package isolation

// Pieces of requests. world.setVars sets the values of $NAME$.

// clusterSegments are path segments for logical clusters. Only the first two are valid.
var clusterSegments = []string{
	"$B$", "$BPATH$",
	"*", "%2A", "%2a", "**", "root", "system:admin", "system:$B$", "system:%2e%2e%2f$B$", "",
	".", "..", "%2e%2e", "%2E%2e", "..%2f$B$", "$A$%2f..%2f$B$", "$A$%2F%2e%2e%2F$B$", "$A$%252f..%252f$B$", "$A$%00$B$", "$A$%0a$B$",
	"$A$;$B$", "$A$;/$B$", "$A$,$B$", "$A$|$B$", "$A$%7c$B$", "$A$ $B$", "$A$%20$B$", "$A$+$B$", "$A$&$B$", "$A$#$B$", "$A$%23$B$", "$A$?$B$", "$A$%3f$B$", "$A$\\..\\$B$", "$A$%5c..%5c$B$",
	"$A$:$B$", "$A$:..:$B$", "$A$::$B$", ":$B$", "$B$:", "$BPATH$:", ":$BPATH$", "root:alpha:..:$BLAST$", "root:alpha:$B$", "root:alpha:$BPATH$", "$A$%3a$B$", "root%3a$BLAST$", "root%3A$BLAST$",
	"$UPPERB$", "%24{B}", "$B$.", "$B$%20", "%20$B$", "$B$%00", "$B$%0d%0a", "$B$@", "$A$@$B$", "~", "~$B$", "$B$*", "{$B$}", "[$B$]", "\"$B$\"", "$B$\xc0\xaf", "\xc0\xae\xc0\xae", "$B$%c0%af", "%c0%ae%c0%ae", "\uff0e\uff0e", "%ef%bc%8e%ef%bc%8e", "ro\u043et:$BLAST$", "$B$%e2%80%8b", "1", "0x$B$", "-", "$B$-", "null", "undefined",
}

// prefixes are prefixes of API paths. CLUSTER is replaced by one of clusterSegments.
var prefixes = []string{
	"/clusters/CLUSTER", "/clusters/CLUSTER", "/clusters/CLUSTER", "/clusters/CLUSTER", "/clusters/CLUSTER", "/clusters/CLUSTER",
	"/clusters/$A$", "/clusters/$APATH$", "/clusters/$A$", "/clusters/$A$", "/clusters/$A$", "/clusters/$A$",
	"", "/", "//",
	"/clusters/$A$/clusters/CLUSTER", "/clusters/CLUSTER/clusters/$A$", "/clusters/$A$//clusters/CLUSTER", "/clusters/$A$/clusters//CLUSTER", "/clusters//clusters/CLUSTER", "/clusters/clusters/CLUSTER", "/clusters/$A$/%63lusters/CLUSTER",
	"/clusters/$A$/../CLUSTER", "/clusters/$A$/..%2fCLUSTER", "/clusters/$A$/%2e%2e/CLUSTER", "/clusters/$A$/../../clusters/CLUSTER", "/clusters/$A$/./../CLUSTER", "/clusters/$A$/;/../CLUSTER", "/clusters/$A$/..;/CLUSTER", "/clusters/$A$/%2e%2e%2fCLUSTER", "/clusters/$A$/%252e%252e/CLUSTER",
	"//clusters/CLUSTER", "/clusters//CLUSTER", "/clusters///CLUSTER", "/./clusters/CLUSTER", "/x/../clusters/CLUSTER", "/CLUSTERS/CLUSTER", "/Clusters/CLUSTER", "/%63lusters/CLUSTER", "/clusters%2fCLUSTER", "\\clusters\\CLUSTER", "/clusters\\CLUSTER", "/clusters;x=y/CLUSTER", "/clusters./CLUSTER", "/clusters%00/CLUSTER", "/clusters%20/CLUSTER",
	"https://localhost/clusters/CLUSTER", "http://$B$/clusters/$A$", "https://clusters/CLUSTER", "https://user:pass@localhost/clusters/CLUSTER", "https://localhost//clusters/CLUSTER", "https:/clusters/CLUSTER", "https:clusters/CLUSTER", "*", "*/clusters/CLUSTER", "localhost:443/clusters/CLUSTER",
	"/services/cache/shards/*/clusters/CLUSTER", "/services/cache/shards/root/clusters/CLUSTER", "/services/cache/shards/shard-1/clusters/*", "/shards/*/clusters/CLUSTER", "/services/cache/shards/root%2f..%2f*/clusters/CLUSTER", "/services/cache/clusters/CLUSTER", "/services/cache/shards/clusters/CLUSTER", "/clusters/$A$/services/cache/shards/*/clusters/CLUSTER", "/services/cache/../../clusters/CLUSTER",
	"/services/apiexport/$B$/tenancy.kcp.io/clusters/*", "/services/apiexport/root/tenancy.kcp.io/clusters/CLUSTER", "/services/apiresourceschema/$B$/clusters/*", "/services/initializingworkspaces/root:universal/clusters/CLUSTER", "/services/terminatingworkspaces/root:universal/clusters/*", "/services/replication/$B$/x/clusters/*", "/services/migratingworkspaces/clusters/CLUSTER", "/services/CLUSTER",
	"/services/admin", "/services/admin/../clusters/CLUSTER", "/services/admin/clusters/CLUSTER", "/services/admin%2f..%2fclusters/CLUSTER", "/clusters/$A$/services/admin",
	"/clusters/$A$/api/v1/../../../CLUSTER", "/clusters/$A$/api/v1/namespaces/../../../../CLUSTER", "/clusters/$A$/proxy/clusters/CLUSTER", "/clusters/$A$?/clusters/CLUSTER", "/clusters/$A$#/clusters/CLUSTER", "/clusters/$A$%3f/clusters/CLUSTER",
}

// resource is a resource for requests.
type resource struct {
	group, plural, kind, apiVersion string
	namespaced                      bool
	// body contains the fields of objects without type and metadata.
	body string
}

var resources = []resource{
	{group: "/apis/bound.example/v1", plural: "gems", kind: "Gem", apiVersion: "bound.example/v1", namespaced: true, body: `"spec":{"text":"x"}`},
	{group: "/apis/bound.example/v1", plural: "gems:$GEMS$", kind: "Gem", apiVersion: "bound.example/v1", namespaced: true, body: `"spec":{"text":"x"}`},
	{group: "/apis/bound.example/v1", plural: "gems:", kind: "Gem", apiVersion: "bound.example/v1", namespaced: true, body: `"spec":{"text":"x"}`},
	{group: "/apis/apis.kcp.io/v1alpha2", plural: "apibindings:", kind: "APIBinding", apiVersion: "apis.kcp.io/v1alpha2", body: `"spec":{"reference":{"export":{"path":"$BPATH$","name":"gems"}}}`},
	{group: "/apis/internal.shardplane.io/v1alpha1", plural: "boundschemas", kind: "BoundSchema", apiVersion: "internal.shardplane.io/v1alpha1", body: `"original":"v1.gems.bound.example"`},
	{group: "/api/v1", plural: "configmaps", kind: "ConfigMap", apiVersion: "v1", namespaced: true, body: `"data":{"k":"v"}`},
	{group: "/api/v1", plural: "secrets", kind: "Secret", apiVersion: "v1", namespaced: true, body: `"stringData":{"k":"v"}`},
	{group: "/api/v1", plural: "secrets", kind: "Secret", apiVersion: "v1", namespaced: true, body: `"type":"kubernetes.io/service-account-token"`},
	{group: "/api/v1", plural: "namespaces", kind: "Namespace", apiVersion: "v1", body: `"spec":{}`},
	{group: "/api/v1", plural: "serviceaccounts", kind: "ServiceAccount", apiVersion: "v1", namespaced: true, body: `"secrets":[{"name":"treasure","namespace":"vault"}]`},
	{group: "/api/v1", plural: "events", kind: "Event", apiVersion: "v1", namespaced: true, body: `"involvedObject":{"kind":"ConfigMap","namespace":"vault","name":"treasure","uid":"$BUID$"},"reason":"x"`},
	{group: "/api/v1", plural: "resourcequotas", kind: "ResourceQuota", apiVersion: "v1", namespaced: true, body: `"spec":{"hard":{"count/widgets.example.com":"1000"}}`},
	{group: "/api/v1", plural: "limitranges", kind: "LimitRange", apiVersion: "v1", namespaced: true, body: `"spec":{"limits":[]}`},
	{group: "/apis/coordination.k8s.io/v1", plural: "leases", kind: "Lease", apiVersion: "coordination.k8s.io/v1", namespaced: true, body: `"spec":{"holderIdentity":"x"}`},
	{group: "/apis/rbac.authorization.k8s.io/v1", plural: "roles", kind: "Role", apiVersion: "rbac.authorization.k8s.io/v1", namespaced: true, body: `"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]`},
	{group: "/apis/rbac.authorization.k8s.io/v1", plural: "clusterroles", kind: "ClusterRole", apiVersion: "rbac.authorization.k8s.io/v1", body: `"rules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]},{"verbs":["*"],"nonResourceURLs":["*"]}]`},
	{group: "/apis/rbac.authorization.k8s.io/v1", plural: "clusterrolebindings", kind: "ClusterRoleBinding", apiVersion: "rbac.authorization.k8s.io/v1", body: `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"system:authenticated"},{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"system:kcp:serviceaccount:$B$:default:robot"}]`},
	{group: "/apis/rbac.authorization.k8s.io/v1", plural: "rolebindings", kind: "RoleBinding", apiVersion: "rbac.authorization.k8s.io/v1", namespaced: true, body: `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"},"subjects":[{"kind":"ServiceAccount","namespace":"default","name":"robot"}]`},
	{group: "/apis/apiextensions.k8s.io/v1", plural: "customresourcedefinitions", kind: "CustomResourceDefinition", apiVersion: "apiextensions.k8s.io/v1", body: `"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"gadgets","singular":"gadget","kind":"Gadget","listKind":"GadgetList"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}`},
	{group: "/apis/example.com/v1", plural: "widgets", kind: "Widget", apiVersion: "example.com/v1", namespaced: true, body: `"spec":{}`},
	{group: "/apis/example.com/v1", plural: "gadgets", kind: "Gadget", apiVersion: "example.com/v1", namespaced: true, body: `"spec":{}`},
	{group: "/apis/tenancy.kcp.io/v1alpha1", plural: "workspacetypes", kind: "WorkspaceType", apiVersion: "tenancy.kcp.io/v1alpha1", body: `"spec":{}`},
	{group: "/apis/tenancy.kcp.io/v1alpha1", plural: "workspaces", kind: "Workspace", apiVersion: "tenancy.kcp.io/v1alpha1", body: `"spec":{"cluster":"$B$","URL":"https://localhost/clusters/$B$"},"status":{"phase":"Ready"}`},
	{group: "/apis/tenancy.kcp.io/v1alpha1", plural: "workspaces", kind: "Workspace", apiVersion: "tenancy.kcp.io/v1alpha1", body: `"spec":{"type":{"name":"treasure","path":"$BPATH$"}}`},
	{group: "/apis/core.kcp.io/v1alpha1", plural: "logicalclusters", kind: "LogicalCluster", apiVersion: "core.kcp.io/v1alpha1", body: `"spec":{"owner":{"cluster":"$B$"}}`},
	{group: "/apis/core.kcp.io/v1alpha1", plural: "shards", kind: "Shard", apiVersion: "core.kcp.io/v1alpha1", body: `"spec":{"baseURL":"$HOOK$"}`},
	{group: "/apis/admissionregistration.k8s.io/v1", plural: "validatingwebhookconfigurations", kind: "ValidatingWebhookConfiguration", apiVersion: "admissionregistration.k8s.io/v1", body: `"webhooks":[` + hookBody + `]`},
	{group: "/apis/admissionregistration.k8s.io/v1", plural: "mutatingwebhookconfigurations", kind: "MutatingWebhookConfiguration", apiVersion: "admissionregistration.k8s.io/v1", body: `"webhooks":[` + hookBody + `]`},
	{group: "/apis/admissionregistration.k8s.io/v1", plural: "validatingadmissionpolicies", kind: "ValidatingAdmissionPolicy", apiVersion: "admissionregistration.k8s.io/v1", body: `"spec":{"failurePolicy":"Ignore","paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["*"],"operations":["CREATE"],"resources":["limitranges"]}]},"validations":[{"expression":"false","messageExpression":"params.data.key"}]}`},
	{group: "/apis/admissionregistration.k8s.io/v1", plural: "validatingadmissionpolicybindings", kind: "ValidatingAdmissionPolicyBinding", apiVersion: "admissionregistration.k8s.io/v1", body: `"spec":{"policyName":"treasure","paramRef":{"name":"treasure","namespace":"vault","parameterNotFoundAction":"Allow"},"validationActions":["Deny"]}`},
	{group: "/apis/certificates.k8s.io/v1", plural: "certificatesigningrequests", kind: "CertificateSigningRequest", apiVersion: "certificates.k8s.io/v1", body: `"spec":{"request":"AA==","signerName":"x/y","usages":["client auth"]}`},
	{group: "/apis/authorization.k8s.io/v1", plural: "selfsubjectaccessreviews", kind: "SelfSubjectAccessReview", apiVersion: "authorization.k8s.io/v1", body: `"spec":{"resourceAttributes":{"verb":"get","resource":"secrets","namespace":"vault"}}`},
	{group: "/apis/authorization.k8s.io/v1", plural: "selfsubjectrulesreviews", kind: "SelfSubjectRulesReview", apiVersion: "authorization.k8s.io/v1", body: `"spec":{"namespace":"vault"}`},
	{group: "/apis/authorization.k8s.io/v1", plural: "subjectaccessreviews", kind: "SubjectAccessReview", apiVersion: "authorization.k8s.io/v1", body: `"spec":{"user":"system:serviceaccount:default:robot","groups":["system:masters"],"extra":{"authentication.kcp.io/cluster-name":["$B$"],"authentication.kcp.io/scopes":["cluster:$B$"],"authorization.kcp.io/warrant":["{\"user\":\"x\",\"groups\":[\"system:masters\"]}"]},"nonResourceAttributes":{"verb":"access","path":"/clusters/$B$"}}`},
	{group: "/apis/authorization.k8s.io/v1", plural: "localsubjectaccessreviews", kind: "LocalSubjectAccessReview", apiVersion: "authorization.k8s.io/v1", namespaced: true, body: `"spec":{"user":"x","resourceAttributes":{"verb":"get","resource":"secrets","namespace":"vault"}}`},
	{group: "/apis/authentication.k8s.io/v1", plural: "selfsubjectreviews", kind: "SelfSubjectReview", apiVersion: "authentication.k8s.io/v1", body: `"spec":{}`},
	{group: "/apis/authentication.k8s.io/v1", plural: "tokenreviews", kind: "TokenReview", apiVersion: "authentication.k8s.io/v1", body: `"spec":{"token":"user-2-token"}`},
	{group: "/apis/apis.kcp.io/v1alpha1", plural: "apibindings", kind: "APIBinding", apiVersion: "apis.kcp.io/v1alpha1", body: `"spec":{"reference":{"export":{"path":"$BPATH$","name":"treasure"}}}`},
	{group: "/apis/apis.kcp.io/v1alpha2", plural: "apiexports", kind: "APIExport", apiVersion: "apis.kcp.io/v1alpha2", body: `"spec":{"identity":{"secretRef":{"namespace":"vault","name":"treasure"}}},"status":{"identityHash":"$BUID$"}`},
	{group: "/apis/cache.kcp.io/v1alpha1", plural: "cachedresources", kind: "CachedResource", apiVersion: "cache.kcp.io/v1alpha1", body: `"spec":{"group":"example.com","version":"v1","resource":"treasures","identity":{"secretRef":{"namespace":"vault","name":"treasure"}}},"status":{"identityHash":"$BUID$"}`},
	{group: "/apis/cache.kcp.io/v1alpha1", plural: "cachedresourceendpointslices", kind: "CachedResourceEndpointSlice", apiVersion: "cache.kcp.io/v1alpha1", body: `"spec":{"cachedResource":{"path":"$BPATH$","name":"treasure"},"export":{"path":"$BPATH$","name":"treasure"}}`},
	{group: "/apis/apis.kcp.io/v1alpha1", plural: "apiexportendpointslices", kind: "APIExportEndpointSlice", apiVersion: "apis.kcp.io/v1alpha1", body: `"spec":{"export":{"path":"$BPATH$","name":"treasure"}}`},
}

const hookBody = `{"name":"spy.example.com","failurePolicy":"Ignore","timeoutSeconds":1,"sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"url":"$HOOK$/generated","caBundle":"$HOOKCA$"},"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["*"],"resources":["limitranges"]}]}`

// others are non-resource paths.
var others = []string{
	"", "/", "/api", "/api/v1", "/apis", "/apis/", "/apis/example.com", "/apis/example.com/v1", "/apis/$B$", "/openapi/v2", "/openapi/v3", "/openapi/v3/apis/example.com/v1", "/openapi/v3/api/v1", "/version", "/version/", "/swagger.json",
	"/metrics", "/metrics/slis", "/metrics/cadvisor", "/debug/pprof/heap", "/debug/pprof/", "/debug/flags/v", "/configz", "/flagz", "/statusz", "/logs", "/healthz", "/livez", "/readyz", "/readyz/etcd", "/readyz?verbose", "/healthz/poststarthook/x", "/.well-known/openid-configuration", "/openid/v1/jwks", "/clusters", "/clusters/", "/api/v1/watch/namespaces/vault/configmaps", "/api/v1/watch/namespaces/vault/secrets/treasure", "/api/v1/proxy/namespaces/vault", "/api/v1/namespaces/vault/services/https:x:/proxy/", "/api/v1/componentstatuses", "/apis/apiregistration.k8s.io/v1/apiservices",
}

// names are names and namespaces in paths.
var names = []string{
	"vault", "vault", "vault", "vault", "default", "treasure", "treasure", "treasure", "treasure", "treasure-1", "robot", "cluster", "widgets.example.com", "pulse", "forbidden", "mine", "mine-2", "cluster-admin", "workspace-admin",
	"*", ".", "..", "%2e%2e", "%2e", "..%2f..%2f$B$%2fvault", "%2e%2e%2f%2e%2e%2f$B$", "../$B$", "../../$B$/vault", "$B$", "$B$%2fvault", "$B$%7cvault", "$B$|vault", "$B$:vault", "$BPATH$", "vault%2ftreasure", "vault%00", "vault%2f", "%2fvault", "", "~", "VAULT", "vault%20", "treasure%2f..%2f..%2f..%2f$B$%2fvault%2ftreasure", "%c0%ae%c0%ae", "system:serviceaccount:default:robot", "a%0ab", "0", "-1", "$LONG$",
}

var subresources = []string{"status", "scale", "token", "finalize", "approval", "log", "*", "..", "proxy", "exec", "%2e%2e", "ephemeralcontainers"}

// queries are query parameters.
var queries = []string{
	"limit=1", "limit=2", "limit=2&continue=$BNEXT$", "limit=1&continue=$ANEXT$", "continue=$BNEXT$", "continue=$ANEXT$", "continue=$AOTHER$", "limit=500&continue=$BNEXT$", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8uLi8ifQ", "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiLi4vLi4vLi4vIn0.AAAAAAAAAAAAAAAA", "continue=", "continue=$B$", "continue=$BNEXT$x", "continue=$ANEXT$&continue=$BNEXT$",
	"resourceVersion=0", "resourceVersion=1", "resourceVersion=10&resourceVersionMatch=Exact", "resourceVersion=0&resourceVersionMatch=NotOlderThan", "resourceVersion=" + future, "resourceVersion=-1", "resourceVersion=$B$", "resourceVersionMatch=Exact",
	"labelSelector=same%3Dsame", "labelSelector=tier", "labelSelector=%21tier", "labelSelector=kcp.io%2Fcluster%3D$B$", "labelSelector=tenancy.kcp.io%2Fphase", "labelSelector=x+in+%28a%2Cb%29", "labelSelector=%00", "labelSelector=a%3Db%2Ckcp.io%2Fcluster%21%3D$A$",
	"fieldSelector=metadata.name%3Dtreasure", "fieldSelector=metadata.namespace%3Dvault", "fieldSelector=metadata.namespace%21%3Dvault", "fieldSelector=metadata.namespace%3D", "fieldSelector=metadata.name%3D..%2F..%2F$B$", "fieldSelector=kcp.io%2Fcluster%3D$B$", "fieldSelector=metadata.annotations%5Bkcp.io%2Fcluster%5D%3D$B$", "fieldSelector=metadata.cluster%3D$B$", "fieldSelector=metadata.clusterName%3D$B$", "fieldSelector=cluster%3D$B$", "fieldSelector=shardplane.io%2Fcluster%3D$B$", "fieldSelector=metadata.name%3Dtreasure%2Cmetadata.namespace%3Dvault", "fieldSelector=metadata.uid%3D$BUID$", "fieldSelector=type%3DOpaque", "fieldSelector=metadata.name%3D%2A", "fieldSelector=internal.cluster%3D$B$", "fieldSelector=~cluster%3D$B$", "fieldSelector=%00%3D$B$",
	"shardSelector=shardRange%28object.metadata.cluster%2C+%270x0000000000000000%27%2C+%270x10000000000000000%27%29", "shardSelector=shardRange%28object.metadata.uid%2C+%270x0000000000000000%27%2C+%270x10000000000000000%27%29", "shardSelector=shardRange%28object.metadata.uid%2C+%270x0000000000000000%27%2C+%270x8000000000000000%27%29", "shardSelector=shardRange%28object.metadata.namespace%2C+%270x0000000000000000%27%2C+%270x10000000000000000%27%29", "shardSelector=shardRange%28object.metadata.annotations%2C+%270x0%27%2C+%270x1%27%29", "shardSelector=x",
	"watch=true", "watch=1", "watch=true&resourceVersion=0", "watch=true&resourceVersion=1", "watch=true&allowWatchBookmarks=true", "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&shardSelector=shardRange%28object.metadata.uid%2C+%270x0000000000000000%27%2C+%270x10000000000000000%27%29", "watch=true&fieldSelector=metadata.name%3Dtreasure", "watch=true&fieldSelector=metadata.name%3Dpulse", "watch=true&labelSelector=same%3Dsame", "watch=true&continue=$BNEXT$", "watch=true&limit=1", "watch=%00",
	"timeout=1ns", "timeout=abc", "timeout=0", "timeout=-1s", "timeout=1h", "timeoutSeconds=1&watch=true", "timeoutSeconds=-1", "dryRun=All", "dryRun=x", "fieldManager=a%2Fb", "fieldManager=x&force=true", "fieldValidation=Strict", "propagationPolicy=Foreground", "gracePeriodSeconds=0", "orphanDependents=true", "pretty=true", "includeObject=Object", "as=system%3Amasters", "cluster=$B$", "clusterName=$B$", "namespace=vault", "impersonate=x", "verbose", "$B$", "%", "&&", "=", ";x=y", "a=%zz", "exact=true&export=true",
}

// headers are header lines.
var headers = []string{
	"X-Remote-User: kcp-admin", "X-Remote-User: system:apiserver", "X-Remote-User: ", "x-remote-user: kcp-admin", "X-REMOTE-USER: kcp-admin", "X_Remote_User: kcp-admin", "X-Remote_User: kcp-admin", "X-Remote-User : kcp-admin", " X-Remote-User: kcp-admin", "X-Remote-Group: system:masters", "X-Remote-Group: system:kcp:admin\r\nX-Remote-User: kcp-admin", "x_remote_group: system:masters", "X-Remote-Group: system:authenticated, system:masters", "X-Remote-Uid: 0", "X-Remote-Extra-Authentication.kcp.io%2fcluster-Name: $B$", "X-Remote-Extra-Authentication.kcp.io%2Fscopes: cluster:$B$", "X-Remote-Extra-Authorization.kcp.io%2Fwarrant: {\"user\":\"kcp-admin\",\"groups\":[\"system:masters\"]}", "X-Remote-User: a\r\nX-Remote-User: kcp-admin",
	"Impersonate-User: kcp-admin", "Impersonate-User: user-2", "Impersonate-User: mallory\r\nImpersonate-Group: system:masters", "Impersonate-User: x\r\nImpersonate-Group: system:kcp:admin", "Impersonate-User: x\r\nImpersonate-Group: system:kcp:logical-cluster-admin", "Impersonate-Group: system:masters", "Impersonate-Uid: 1", "Impersonate-User: system:serviceaccount:default:robot", "Impersonate-User: system:serviceaccount:default:robot\r\nImpersonate-Extra-Authentication.kcp.io%2Fcluster-Name: $B$", "Impersonate-User: system:kcp:serviceaccount:$B$:default:robot", "Impersonate-User: x\r\nImpersonate-Extra-Authentication.kcp.io%2Fscopes: cluster:$B$", "Impersonate-User: x\r\nImpersonate-Extra-authentication.kcp.io%2fSCOPES: cluster:$B$,cluster:$A$", "Impersonate-User: x\r\nImpersonate-Extra-Authorization.kcp.io%2Fwarrant: {\"user\":\"kcp-admin\",\"groups\":[\"system:kcp:admin\"]}", "Impersonate-User: x\r\nImpersonate-Extra-Authorization.kcp.io%2Fcluster-Name: $B$", "Impersonate-User: system:apiserver", "Impersonate-User: system:node:x", "Impersonate-User: system:anonymous", "Impersonate-User: \r\nImpersonate-User: kcp-admin", "impersonate_user: kcp-admin", "Impersonate-Extra-%zz: x", "Impersonate-User: x\r\nImpersonate-Extra-: x", "Impersonate-User: x\r\nImpersonate-Extra-A: ", "Impersonate-User: kcp-admin\r\nImpersonate-Group: system:kcp:admin\r\nImpersonate-Extra-Authentication.kcp.io%2Fscopes: cluster:$A$",
	"X-Kcp-Internal-Deep-SubjectAccessReview: true", "X-Kcp-Internal-Authorized: true", "X-Kcp-Cluster: $B$", "X-Kcp-Internal-Cluster: $B$", "X-Kubernetes-Cluster: $B$", "X-Kcp-Shard: shard-1", "X_Kcp_Internal_Deep_SubjectAccessReview: true",
	"Host: $B$", "Host: localhost\r\nHost: $B$", "Host: ", "X-Forwarded-Host: $B$", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: https", "X-Forwarded-Prefix: /clusters/$B$", "X-Forwarded-Uri: /clusters/$B$/api", "X-Original-URL: /clusters/$B$/api/v1/namespaces/vault/secrets", "X-Rewrite-URL: /clusters/$B$/api/v1/secrets", "X-HTTP-Method-Override: GET", "X-Method-Override: DELETE", "Forwarded: host=$B$;proto=https", "X-Client-Cert: x", "X-Ssl-Client-Dn: CN=kcp-admin,O=system:masters", "Ssl-Client-Cert: x",
	"Connection: X-Remote-User", "Connection: close, X-Remote-User, X-Remote-Group, Authorization", "Connection: Authorization", "Connection: Impersonate-User\r\nImpersonate-User: kcp-admin", "Connection: Impersonate-Extra-Authentication.kcp.io%2fscopes\r\nImpersonate-User: kcp-admin", "Connection: Upgrade\r\nUpgrade: websocket", "Connection: Upgrade\r\nUpgrade: SPDY/3.1", "Connection: Upgrade, X-Remote-User\r\nUpgrade: h2c", "Connection: Upgrade\r\nUpgrade: \x80", "Proxy-Connection: X-Remote-User", "Keep-Alive: X-Remote-User", "TE: trailers", "Trailer: X-Remote-User", "Proxy-Authorization: Bearer admin",
	"Authorization: Bearer user-2-token", "authorization: Basic a2NwLWFkbWluOng=", "Authorization: Bearer", "Authorization: Bearer  user-2-token", "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.dXNlci0yLXRva2Vu", "Cookie: token=user-2-token", "X-Auth-Token: user-2-token",
	"Accept: application/json", "Accept: application/yaml", "Accept: application/vnd.kubernetes.protobuf", "Accept: application/cbor", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io", "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", "Accept: */*;stream=watch", "Accept: text/html", "Accept: x", "Accept-Encoding: gzip", "Accept-Encoding: gzip\r\nAccept: application/yaml", "If-None-Match: *", "If-Modified-Since: x", "Range: bytes=0-10", "Audit-Id: $B$", "Audit-Id: ../$B$", "User-Agent: $B$", "Origin: https://$B$", "Content-Encoding: gzip", "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Max-Forwards: 0", "Via: 1.1 $B$",
}

// metadata are metadata fields of objects to write.
var metadata = []string{
	`"annotations":{"kcp.io/cluster":"$B$"}`, `"annotations":{"kcp.io/cluster":"*"}`, `"annotations":{"internal.apis.kcp.io/identity":"$GEMS$"}`, `"labels":{"internal.apis.kcp.io/export":"$GEMS$"}`, `"annotations":{"kcp.io/cluster":""}`, `"annotations":{"kcp.io/shard":"shard-1","kcp.io/path":"$BPATH$"}`, `"annotations":{"internal.tenancy.kcp.io/cluster":"$B$","internal.tenancy.kcp.io/shard":"shard-1"}`, `"annotations":{"core.kcp.io/shard":"shard-1","internal.kcp.io/replicate":"true"}`, `"annotations":{"authorization.kcp.io/required-groups":""}`, `"annotations":{"experimental.tenancy.kcp.io/owner":"{\"username\":\"kcp-admin\",\"groups\":[\"system:masters\"]}"}`, `"annotations":{"apis.kcp.io/schema-cluster":"$B$","cache.kcp.io/original-resource-UID":"$BUID$"}`, `"annotations":{"kubernetes.io/service-account.name":"robot"}`, `"annotations":{"kubernetes.io/service-account.name":"robot","kubernetes.io/service-account.uid":"$BUID$","kcp.io/cluster":"$B$"}`,
	`"labels":{"kcp.io/cluster":"$B$"}`, `"labels":{"internal.kcp.io/replicate":"true","claimed.internal.apis.kcp.io/x":"$B$"}`, `"labels":{"same":"same"}`, `"labels":{"rbac.authorization.k8s.io/aggregate-to-admin":"true"}`, `"labels":{"rbac.authorization.k8s.io/aggregate-to-view":"true","kubernetes.io/bootstrapping":"rbac-defaults"}`,
	`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"treasure","uid":"$BUID$"}]`, `"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"vault","uid":"$BUID$","controller":true,"blockOwnerDeletion":true}]`, `"ownerReferences":[{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","name":"cluster","uid":"$BUID$"}]`,
	`"finalizers":["core.kcp.io/logicalcluster"]`, `"finalizers":["kubernetes"]`, `"uid":"$BUID$"`, `"resourceVersion":"1"`, `"resourceVersion":"0"`, `"generateName":"g-"`, `"generateName":"../$B$/"`, `"generateName":"$B$|"`, `"generateName":"$B$:"`, `"selfLink":"/clusters/$B$"`, `"clusterName":"$B$"`, `"zz_cluster":"$B$"`, `"managedFields":[{"manager":"x","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{}}]`, `"managedFields":[{}]`, `"creationTimestamp":"2000-01-01T00:00:00Z"`, `"deletionTimestamp":"2000-01-01T00:00:00Z"`,
}

// objectNames are names of objects to write.
var objectNames = []string{
	"treasure", "treasure", "mine", "mine", "mine-2", "forbidden", "vault", "robot", "../$B$", "../../$B$/vault/treasure", "$B$/treasure", "$B$|vault", "$B$:treasure", "..", ".", "", "a/b", "%2e%2e", "treasure\\u0000", "TREASURE", "widgets.example.com", "gadgets.example.com", "gadgets.$B$.example.com", "cluster", "mine\\n",
}

// patches are bodies of patches with their content types.
var patches = [][2]string{
	{"application/merge-patch+json", `{"metadata":{META}}`},
	{"application/merge-patch+json", `{"metadata":{META},"data":{"k":"w"}}`},
	{"application/merge-patch+json", `{"metadata":{"annotations":{"kcp.io/cluster":null}}}`},
	{"application/strategic-merge-patch+json", `{"metadata":{META},"$patch":"replace"}`},
	{"application/json-patch+json", `[{"op":"add","path":"/metadata/annotations","value":{"kcp.io/cluster":"$B$"}}]`},
	{"application/json-patch+json", `[{"op":"copy","from":"/metadata/annotations/kcp.io~1cluster","path":"/data/k"}]`},
	{"application/json-patch+json", `[{"op":"test","path":"/metadata/uid","value":"$BUID$"},{"op":"replace","path":"/metadata/name","value":"../$B$"}]`},
	{"application/json-patch+json", `[{"op":"replace","path":"/metadata/namespace","value":"$B$"}]`},
	{"application/apply-patch+yaml", `{"apiVersion":"VERSION","kind":"KIND","metadata":{"name":"NAME",META}}`},
	{"application/apply-patch+yaml", `{"apiVersion":"VERSION","kind":"KIND","metadata":{"name":"NAME","namespace":"$B$",META}}`},
	{"application/apply-patch+cbor", `x`},
	{"application/merge-patch+json", `{"apiVersion":"example.com/v1"}`},
	{"text/plain", `{}`},
}

// deletions are bodies of DELETE requests.
var deletions = []string{
	``, `{}`, `{"preconditions":{"uid":"$BUID$"}}`, `{"propagationPolicy":"Foreground"}`, `{"propagationPolicy":"Orphan","preconditions":{"resourceVersion":"1"}}`, `{"gracePeriodSeconds":0,"dryRun":["All"]}`, `{"dryRun":["All"]}`, `{"kind":"DeleteOptions","apiVersion":"v1","clusterName":"$B$"}`,
}

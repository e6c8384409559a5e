package policy

import (
	sdkapis "github.com/kcp-dev/sdk/apis/apis"
	sdkcache "github.com/kcp-dev/sdk/apis/cache"
	sdkcore "github.com/kcp-dev/sdk/apis/core"
	sdktenancy "github.com/kcp-dev/sdk/apis/tenancy"
	sdktopology "github.com/kcp-dev/sdk/apis/topology"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/request"
)

// Cluster roles that other packages use.
const (
	// ClusterAdmin allows all requests.
	ClusterAdmin = "cluster-admin"
	// WorkspaceAccess grants access to a logical cluster, without permissions in it.
	WorkspaceAccess = "system:kcp:workspace:access"
)

// HomeCreate is the cluster role in root for creating home workspaces, and its binding, whose groups cannot
// be extended.
const HomeCreate = request.GroupPrefix + "home-clusterworkspace-create"

// Cluster roles that bindings of the same name bind to groups.
const (
	discovery        = "system:discovery"
	basicUser        = "system:basic-user"
	publicInfoViewer = "system:public-info-viewer"
	issuerDiscovery  = "system:service-account-issuer-discovery"
	monitoring       = "system:monitoring"
)

const (
	groupCore           = ""
	groupAuthentication = "authentication.k8s.io"
	groupAuthorization  = "authorization.k8s.io"
	groupCoordination   = "coordination.k8s.io"
	groupTenancy        = sdktenancy.GroupName
	groupTopology       = sdktopology.GroupName
	groupLogicalCluster = sdkcore.GroupName
	groupAPIs           = sdkapis.GroupName
	groupCache          = sdkcache.GroupName

	aggregatePrefix = "rbac.authorization.k8s.io/aggregate-to-"
)

var (
	read      = []string{"get", "list", "watch"}
	write     = []string{"create", "delete", "deletecollection", "patch", "update"}
	readWrite = append(append([]string{}, write...), read...)
	create    = []string{"create"}
	anything  = []string{"*"}
)

// kubernetesRoles are the roles that clients expect of every API server.
func kubernetesRoles() []*rbacv1.ClusterRole {
	health := []string{"/healthz", "/livez", "/readyz", "/version", "/version/"}
	return []*rbacv1.ClusterRole{
		role(ClusterAdmin, on("*", anything, "*"), urls("*", "*")),
		role(discovery, urls("get", append([]string{"/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"}, health...)...)),
		role(publicInfoViewer, urls("get", health...)),
		role(basicUser,
			on(groupAuthorization, create, "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
			on(groupAuthentication, create, "selfsubjectreviews")),
		role("system:auth-delegator",
			on(groupAuthentication, create, "tokenreviews"),
			on(groupAuthorization, create, "subjectaccessreviews")),
		role(issuerDiscovery, urls("get", "/.well-known/openid-configuration", "/.well-known/openid-configuration/", "/openid/v1/jwks", "/openid/v1/jwks/")),
		role(monitoring, urls("get", "/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/metrics/slis", "/readyz", "/readyz/*")),
	}
}

// userFacingRoles are admin, edit and view, and the roles that they aggregate. Cluster roles of a logical
// cluster with the labels extend them there.
func userFacingRoles() []*rbacv1.ClusterRole {
	return []*rbacv1.ClusterRole{
		aggregated("admin", "admin"),
		labelled(aggregated("edit", "edit"), "admin"),
		labelled(aggregated("view", "view"), "edit"),
		labelled(role("system:aggregate-to-admin",
			on(groupAuthorization, create, "localsubjectaccessreviews"),
			on(rbacv1.GroupName, readWrite, "roles", "rolebindings"),
		), "admin"),
		labelled(role("system:aggregate-to-edit",
			on(groupCore, read, "secrets"),
			on(groupCore, write, "configmaps", "secrets", "serviceaccounts"),
			on(groupCore, []string{"impersonate"}, "serviceaccounts"),
			on(groupCore, create, "serviceaccounts/token"),
			on(groupCore, []string{"create", "patch", "update"}, "events"),
			on(groupCoordination, readWrite, "leases"),
		), "edit"),
		labelled(role("system:aggregate-to-view",
			on(groupCore, read, "configmaps", "serviceaccounts"),
			on(groupCore, read, "events", "limitranges", "namespaces/status", "resourcequotas", "resourcequotas/status"),
			// Users who see the content of a namespace may see the namespace.
			on(groupCore, read, "namespaces"),
		), "view"),
	}
}

func systemRoles() []*rbacv1.ClusterRole {
	use := []string{"delete", "update", "get"}
	return []*rbacv1.ClusterRole{
		role(WorkspaceAccess, urls("access", "/")),
		// When bound in root, it grants access to the metrics of shards and front-proxies.
		role("system:kcp:metrics-reader", urls("get", "/metrics", "/metrics/slis")),
		role("system:kcp:tenancy:reader",
			on(groupTenancy, read, "workspaces", "workspacetypes"),
			on(groupLogicalCluster, read, "logicalclusters")),
		role(request.GroupWorkspaceBootstrapper, on("*", anything, "*"), urls("*", "*")),
		role(request.GroupLogicalClusterAdmin,
			on(groupLogicalCluster, anything, "logicalclusters", "logicalclusters/status"),
			on(groupTenancy, use, "workspaces")),
		role(request.GroupExternalLogicalClusterAdmin,
			on(groupLogicalCluster, use, "logicalclusters", "logicalclusters/status"),
			on(groupTenancy, use, "workspaces"),
			on(groupCore, []string{"get"}, "serviceaccounts", "secrets"),
			on(groupAPIs, []string{"update", "patch", "get"}, "apiexportendpointslices/status"),
			on(groupAPIs, read, "apiexportendpointslices"),
			on(groupCache, []string{"update", "patch", "get"}, "cachedresourceendpointslices/status", "clustercachedresourceendpointslices/status"),
			on(groupCache, read, "cachedresourceendpointslices", "clustercachedresourceendpointslices"),
			urls("access", "/")),
	}
}

// aggregated returns a role that aggregates all roles with the label.
func aggregated(name, to string) *rbacv1.ClusterRole {
	r := role(name)
	r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{
		{MatchLabels: map[string]string{aggregatePrefix + to: "true"}},
	}}
	return r
}

func labelled(r *rbacv1.ClusterRole, to string) *rbacv1.ClusterRole {
	r.Labels[aggregatePrefix+to] = "true"
	return r
}

func role(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: shipped(name), Rules: rules}
}

// shipped returns the metadata of a built-in object, which shards update unless an administrator has disabled
// this by the annotation.
func shipped(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

func on(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: resources}
}

func urls(verb string, paths ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, NonResourceURLs: paths}
}

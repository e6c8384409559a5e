// Package policy contains the built-in roles and bindings of a shard.
//
// They are regular objects in a system logical cluster of the shard. Its bindings apply in all logical clusters, and
// its cluster roles can be bound in all of them. They are not copied, so an update applies immediately.
package policy

import (
	sdkapis "github.com/kcp-dev/sdk/apis/apis"
	sdkcache "github.com/kcp-dev/sdk/apis/cache"
	sdkcore "github.com/kcp-dev/sdk/apis/core"
	sdktenancy "github.com/kcp-dev/sdk/apis/tenancy"
	sdktopology "github.com/kcp-dev/sdk/apis/topology"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// maximalPolicy is the suffix of maximal permission policies of exports in root.
const maximalPolicy = "maximal-permission-policy"

// Objects are cluster roles and their bindings.
type Objects struct {
	ClusterRoles        []*rbacv1.ClusterRole
	ClusterRoleBindings []*rbacv1.ClusterRoleBinding
}

// System returns the objects that apply in all logical clusters. The caller may modify them.
func System() Objects {
	return Objects{
		ClusterRoles: append(append(kubernetesRoles(), userFacingRoles()...), systemRoles()...),
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
			bind(ClusterAdmin, ClusterAdmin, user.SystemPrivilegedGroup),
			bind(request.GroupAdmin+":cluster-admin", ClusterAdmin, request.GroupAdmin),
			bind(discovery, discovery, user.AllAuthenticated),
			bind(basicUser, basicUser, user.AllAuthenticated),
			bind(publicInfoViewer, publicInfoViewer, user.AllAuthenticated, user.AllUnauthenticated),
			bind(issuerDiscovery, issuerDiscovery, serviceaccount.AllServiceAccountsGroup),
			bind(monitoring, monitoring, monitoring),
			bind(request.GroupWorkspaceBootstrapper, request.GroupWorkspaceBootstrapper, request.GroupWorkspaceBootstrapper, request.GroupBindingPrefix+request.GroupWorkspaceBootstrapper),
			bind(request.GroupLogicalClusterAdmin, request.GroupLogicalClusterAdmin, request.GroupLogicalClusterAdmin),
			bind(request.GroupExternalLogicalClusterAdmin, request.GroupExternalLogicalClusterAdmin, request.GroupExternalLogicalClusterAdmin),
		},
	}
}

// Root returns the objects in root. All users may access it, use the common workspace types, and bind the APIs of every
// workspace, subject to maximal permission policies. Members of homeCreators may have home workspaces.
func Root(homeCreators ...string) Objects {
	const use = "system:kcp:universal-workspacetype-use"
	root := Objects{
		ClusterRoles: []*rbacv1.ClusterRole{
			role(use, rbacv1.PolicyRule{
				Verbs: []string{"use"}, APIGroups: []string{sdktenancy.GroupName}, Resources: []string{"workspacetypes"},
				ResourceNames: []string{"universal", "organization", "team"},
			}),
			role(HomeCreate, rbacv1.PolicyRule{
				Verbs: []string{"get", "create"}, APIGroups: []string{sdktenancy.GroupName}, Resources: []string{"workspaces"}, ResourceNames: []string{"~"},
			}),
		},
		ClusterRoleBindings: []*rbacv1.ClusterRoleBinding{
			bind("system:kcp:tenancy:authenticated:access", WorkspaceAccess, user.AllAuthenticated),
			bind(use, use, user.AllAuthenticated),
			bind(HomeCreate, HomeCreate, homeCreators...),
		},
	}
	root.offer("tenancy", sdktenancy.GroupName, "workspaces", "workspacetypes", "workspaceauthenticationconfigurations")
	root.offer("topology", sdktopology.GroupName, "partitions", "partitionsets")
	return root
}

// offer allows all users to bind an export of root, which is named like its group, and to use its
// resources. However, only the system and administrators may write the status.
func (o *Objects) offer(name, group string, resources ...string) {
	of := "apiexport:" + name + ":"
	binds, most, admin := request.GroupPrefix+of+"bind", request.GroupPrefix+of+maximalPolicy, request.GroupAdmin+":"+of+maximalPolicy
	statuses := make([]string, 0, len(resources))
	for _, resource := range resources {
		statuses = append(statuses, resource+"/status")
	}
	o.ClusterRoles = append(o.ClusterRoles,
		role(binds, rbacv1.PolicyRule{
			Verbs: []string{"bind"}, APIGroups: []string{sdkapis.GroupName}, Resources: []string{"apiexports"}, ResourceNames: []string{group},
		}),
		role(most, on(group, []string{"*"}, resources...), on(group, read, statuses...)),
		role(admin, on(group, []string{"*"}, "*")),
	)
	o.ClusterRoleBindings = append(o.ClusterRoleBindings,
		bind(binds, binds, user.AllAuthenticated),
		bind(most, most, request.GroupBindingPrefix+user.AllAuthenticated),
		bind(admin, admin, request.GroupBindingPrefix+request.GroupAdmin, request.GroupBindingPrefix+request.GroupLogicalClusterAdmin, request.GroupBindingPrefix+request.GroupExternalLogicalClusterAdmin),
	)
}

func bind(name, to string, groups ...string) *rbacv1.ClusterRoleBinding {
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: shipped(name),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: to},
	}
	for _, group := range groups {
		b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group})
	}
	return b
}

// Cluster roles that other packages use.
const (
	// ClusterAdmin allows all requests.
	ClusterAdmin = "cluster-admin"
	// WorkspaceAccess grants access to a logical cluster, without permissions in it.
	WorkspaceAccess = "system:kcp:workspace:access"
	// HomeCreate is for creating home workspaces in root. It is also its binding, whose groups cannot be extended.
	HomeCreate = request.GroupPrefix + "home-clusterworkspace-create"
)

const (
	// These cluster roles are bound to groups by bindings of the same name.
	discovery        = "system:discovery"
	basicUser        = "system:basic-user"
	publicInfoViewer = "system:public-info-viewer"
	issuerDiscovery  = "system:service-account-issuer-discovery"
	monitoring       = "system:monitoring"

	groupCore           = ""
	groupAuthentication = "authentication.k8s.io"
	groupAuthorization  = "authorization.k8s.io"
	groupCoordination   = "coordination.k8s.io"

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
			on(sdktenancy.GroupName, read, "workspaces", "workspacetypes"),
			on(sdkcore.GroupName, read, "logicalclusters")),
		role(request.GroupWorkspaceBootstrapper, on("*", anything, "*"), urls("*", "*")),
		role(request.GroupLogicalClusterAdmin,
			on(sdkcore.GroupName, anything, "logicalclusters", "logicalclusters/status"),
			on(sdktenancy.GroupName, use, "workspaces")),
		role(request.GroupExternalLogicalClusterAdmin,
			on(sdkcore.GroupName, use, "logicalclusters", "logicalclusters/status"),
			on(sdktenancy.GroupName, use, "workspaces"),
			on(groupCore, []string{"get"}, "serviceaccounts", "secrets"),
			on(sdkapis.GroupName, []string{"update", "patch", "get"}, "apiexportendpointslices/status"),
			on(sdkapis.GroupName, read, "apiexportendpointslices"),
			on(sdkcache.GroupName, []string{"update", "patch", "get"}, "cachedresourceendpointslices/status", "clustercachedresourceendpointslices/status"),
			on(sdkcache.GroupName, read, "cachedresourceendpointslices", "clustercachedresourceendpointslices"),
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

// shipped returns the metadata of an object that shards update unless an administrator changes the annotation.
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

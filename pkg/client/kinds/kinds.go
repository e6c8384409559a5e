// Package kinds defines the resources of Kubernetes and of the SDK that Shardplane uses, with their Go types, and a
// scheme of their kinds. It links all of these types: a program that uses few of them can use client.DefineResource
// instead.
package kinds

import (
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

// Resources of Kubernetes that every logical cluster serves.
var (
	Namespaces      = builtin[corev1.Namespace, corev1.NamespaceList](corev1.SchemeGroupVersion, "namespaces")
	ConfigMaps      = builtin[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "configmaps")
	Secrets         = builtin[corev1.Secret, corev1.SecretList](corev1.SchemeGroupVersion, "secrets")
	ServiceAccounts = builtin[corev1.ServiceAccount, corev1.ServiceAccountList](corev1.SchemeGroupVersion, "serviceaccounts")
	ResourceQuotas  = builtin[corev1.ResourceQuota, corev1.ResourceQuotaList](corev1.SchemeGroupVersion, "resourcequotas")

	Roles               = builtin[rbacv1.Role, rbacv1.RoleList](rbacv1.SchemeGroupVersion, "roles")
	RoleBindings        = builtin[rbacv1.RoleBinding, rbacv1.RoleBindingList](rbacv1.SchemeGroupVersion, "rolebindings")
	ClusterRoles        = builtin[rbacv1.ClusterRole, rbacv1.ClusterRoleList](rbacv1.SchemeGroupVersion, "clusterroles")
	ClusterRoleBindings = builtin[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList](rbacv1.SchemeGroupVersion, "clusterrolebindings")

	MutatingWebhookConfigurations     = builtin[admissionregistrationv1.MutatingWebhookConfiguration, admissionregistrationv1.MutatingWebhookConfigurationList](admissionregistrationv1.SchemeGroupVersion, "mutatingwebhookconfigurations")
	ValidatingWebhookConfigurations   = builtin[admissionregistrationv1.ValidatingWebhookConfiguration, admissionregistrationv1.ValidatingWebhookConfigurationList](admissionregistrationv1.SchemeGroupVersion, "validatingwebhookconfigurations")
	MutatingAdmissionPolicies         = builtin[admissionregistrationv1.MutatingAdmissionPolicy, admissionregistrationv1.MutatingAdmissionPolicyList](admissionregistrationv1.SchemeGroupVersion, "mutatingadmissionpolicies")
	MutatingAdmissionPolicyBindings   = builtin[admissionregistrationv1.MutatingAdmissionPolicyBinding, admissionregistrationv1.MutatingAdmissionPolicyBindingList](admissionregistrationv1.SchemeGroupVersion, "mutatingadmissionpolicybindings")
	ValidatingAdmissionPolicies       = builtin[admissionregistrationv1.ValidatingAdmissionPolicy, admissionregistrationv1.ValidatingAdmissionPolicyList](admissionregistrationv1.SchemeGroupVersion, "validatingadmissionpolicies")
	ValidatingAdmissionPolicyBindings = builtin[admissionregistrationv1.ValidatingAdmissionPolicyBinding, admissionregistrationv1.ValidatingAdmissionPolicyBindingList](admissionregistrationv1.SchemeGroupVersion, "validatingadmissionpolicybindings")

	Leases = builtin[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "leases")

	CustomResourceDefinitions = builtin[apiextensionsv1.CustomResourceDefinition, apiextensionsv1.CustomResourceDefinitionList](apiextensionsv1.SchemeGroupVersion, "customresourcedefinitions")
)

// Resources of the SDK.
var (
	LogicalClusters = client.DefineResource[corev1alpha1.LogicalCluster, corev1alpha1.LogicalClusterList](corev1alpha1.SchemeGroupVersion, "logicalclusters")
	Shards          = client.DefineResource[corev1alpha1.Shard, corev1alpha1.ShardList](corev1alpha1.SchemeGroupVersion, "shards")

	Workspaces     = client.DefineResource[tenancyv1alpha1.Workspace, tenancyv1alpha1.WorkspaceList](tenancyv1alpha1.SchemeGroupVersion, "workspaces")
	WorkspaceTypes = client.DefineResource[tenancyv1alpha1.WorkspaceType, tenancyv1alpha1.WorkspaceTypeList](tenancyv1alpha1.SchemeGroupVersion, "workspacetypes")

	WorkspaceAuthenticationConfigurations = client.DefineResource[tenancyv1alpha1.WorkspaceAuthenticationConfiguration, tenancyv1alpha1.WorkspaceAuthenticationConfigurationList](tenancyv1alpha1.SchemeGroupVersion, "workspaceauthenticationconfigurations")

	Partitions    = client.DefineResource[topologyv1alpha1.Partition, topologyv1alpha1.PartitionList](topologyv1alpha1.SchemeGroupVersion, "partitions")
	PartitionSets = client.DefineResource[topologyv1alpha1.PartitionSet, topologyv1alpha1.PartitionSetList](topologyv1alpha1.SchemeGroupVersion, "partitionsets")

	APIResourceSchemas      = client.DefineResource[apisv1alpha1.APIResourceSchema, apisv1alpha1.APIResourceSchemaList](apisv1alpha1.SchemeGroupVersion, "apiresourceschemas")
	APIConversions          = client.DefineResource[apisv1alpha1.APIConversion, apisv1alpha1.APIConversionList](apisv1alpha1.SchemeGroupVersion, "apiconversions")
	APIExports              = client.DefineResource[apisv1alpha2.APIExport, apisv1alpha2.APIExportList](apisv1alpha2.SchemeGroupVersion, "apiexports")
	APIBindings             = client.DefineResource[apisv1alpha2.APIBinding, apisv1alpha2.APIBindingList](apisv1alpha2.SchemeGroupVersion, "apibindings")
	APIExportEndpointSlices = client.DefineResource[apisv1alpha1.APIExportEndpointSlice, apisv1alpha1.APIExportEndpointSliceList](apisv1alpha1.SchemeGroupVersion, "apiexportendpointslices")

	CachedResources        = client.DefineResource[cachev1alpha1.CachedResource, cachev1alpha1.CachedResourceList](cachev1alpha1.SchemeGroupVersion, "cachedresources")
	ClusterCachedResources = client.DefineResource[cachev1alpha1.CachedResource, cachev1alpha1.CachedResourceList](cachev1alpha1.SchemeGroupVersion, "clustercachedresources", client.WithScheme(clusterCached))

	CachedResourceEndpointSlices        = client.DefineResource[cachev1alpha1.CachedResourceEndpointSlice, cachev1alpha1.CachedResourceEndpointSliceList](cachev1alpha1.SchemeGroupVersion, "cachedresourceendpointslices")
	ClusterCachedResourceEndpointSlices = client.DefineResource[ClusterCachedResourceEndpointSlice, ClusterCachedResourceEndpointSliceList](cachev1alpha1.SchemeGroupVersion, "clustercachedresourceendpointslices", client.WithScheme(clusterCached))
)

func builtin[T, L any, PT interface {
	*T
	client.Object
}, PL interface {
	*L
	runtime.Object
},
](gv schema.GroupVersion, plural string) client.Resource[PT, PL] {
	return client.DefineResource[T, L, PT, PL](gv, plural, client.WithProtobuf())
}

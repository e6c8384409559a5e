// Package kinds defines the resources of Kubernetes and of the SDK that Shardplane uses, with their Go types, and a
// scheme of their kinds. It links all types: a program that uses few of them can use client.DefineResource instead.
package kinds

import (
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/shardplane/shardplane/pkg/client"
)

var protobuf = client.WithProtobuf()

// Resources of Kubernetes that every logical cluster serves.
var (
	Namespaces      = client.DefineResource[corev1.Namespace, corev1.NamespaceList](corev1.SchemeGroupVersion, "namespaces", protobuf)
	ConfigMaps      = client.DefineResource[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "configmaps", protobuf)
	Secrets         = client.DefineResource[corev1.Secret, corev1.SecretList](corev1.SchemeGroupVersion, "secrets", protobuf)
	ServiceAccounts = client.DefineResource[corev1.ServiceAccount, corev1.ServiceAccountList](corev1.SchemeGroupVersion, "serviceaccounts", protobuf)
	ResourceQuotas  = client.DefineResource[corev1.ResourceQuota, corev1.ResourceQuotaList](corev1.SchemeGroupVersion, "resourcequotas", protobuf)

	Roles               = client.DefineResource[rbacv1.Role, rbacv1.RoleList](rbacv1.SchemeGroupVersion, "roles", protobuf)
	RoleBindings        = client.DefineResource[rbacv1.RoleBinding, rbacv1.RoleBindingList](rbacv1.SchemeGroupVersion, "rolebindings", protobuf)
	ClusterRoles        = client.DefineResource[rbacv1.ClusterRole, rbacv1.ClusterRoleList](rbacv1.SchemeGroupVersion, "clusterroles", protobuf)
	ClusterRoleBindings = client.DefineResource[rbacv1.ClusterRoleBinding, rbacv1.ClusterRoleBindingList](rbacv1.SchemeGroupVersion, "clusterrolebindings", protobuf)

	MutatingWebhookConfigurations     = client.DefineResource[admissionregistrationv1.MutatingWebhookConfiguration, admissionregistrationv1.MutatingWebhookConfigurationList](admissionregistrationv1.SchemeGroupVersion, "mutatingwebhookconfigurations", protobuf)
	ValidatingWebhookConfigurations   = client.DefineResource[admissionregistrationv1.ValidatingWebhookConfiguration, admissionregistrationv1.ValidatingWebhookConfigurationList](admissionregistrationv1.SchemeGroupVersion, "validatingwebhookconfigurations", protobuf)
	MutatingAdmissionPolicies         = client.DefineResource[admissionregistrationv1.MutatingAdmissionPolicy, admissionregistrationv1.MutatingAdmissionPolicyList](admissionregistrationv1.SchemeGroupVersion, "mutatingadmissionpolicies", protobuf)
	MutatingAdmissionPolicyBindings   = client.DefineResource[admissionregistrationv1.MutatingAdmissionPolicyBinding, admissionregistrationv1.MutatingAdmissionPolicyBindingList](admissionregistrationv1.SchemeGroupVersion, "mutatingadmissionpolicybindings", protobuf)
	ValidatingAdmissionPolicies       = client.DefineResource[admissionregistrationv1.ValidatingAdmissionPolicy, admissionregistrationv1.ValidatingAdmissionPolicyList](admissionregistrationv1.SchemeGroupVersion, "validatingadmissionpolicies", protobuf)
	ValidatingAdmissionPolicyBindings = client.DefineResource[admissionregistrationv1.ValidatingAdmissionPolicyBinding, admissionregistrationv1.ValidatingAdmissionPolicyBindingList](admissionregistrationv1.SchemeGroupVersion, "validatingadmissionpolicybindings", protobuf)

	Leases = client.DefineResource[coordinationv1.Lease, coordinationv1.LeaseList](coordinationv1.SchemeGroupVersion, "leases", protobuf)

	CustomResourceDefinitions = client.DefineResource[apiextensionsv1.CustomResourceDefinition, apiextensionsv1.CustomResourceDefinitionList](apiextensionsv1.SchemeGroupVersion, "customresourcedefinitions", protobuf)
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

	CachedResourceEndpointSlices = client.DefineResource[cachev1alpha1.CachedResourceEndpointSlice, cachev1alpha1.CachedResourceEndpointSliceList](cachev1alpha1.SchemeGroupVersion, "cachedresourceendpointslices")
)

var (
	// Scheme contains the kinds of this package's resources, and those of request options and reviews.
	Scheme = newScheme()
	// Codecs encodes and decodes the kinds of Scheme.
	Codecs = serializer.NewCodecFactory(Scheme)
)

// clusterCached contains kcp's other name of cached resources with the type of the SDK.
var clusterCached = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	gv := cachev1alpha1.SchemeGroupVersion
	scheme.AddKnownTypeWithName(gv.WithKind("ClusterCachedResource"), &cachev1alpha1.CachedResource{})
	scheme.AddKnownTypeWithName(gv.WithKind("ClusterCachedResourceList"), &cachev1alpha1.CachedResourceList{})
	return scheme
}()

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme,
		coordinationv1.AddToScheme,
		admissionregistrationv1.AddToScheme,
		apiextensionsv1.AddToScheme,
		authorizationv1.AddToScheme,
		rbacv1.AddToScheme,

		apisv1alpha1.AddToScheme,
		apisv1alpha2.AddToScheme,
		cachev1alpha1.AddToScheme,
		corev1alpha1.AddToScheme,
		tenancyv1alpha1.AddToScheme,
		topologyv1alpha1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return scheme
}

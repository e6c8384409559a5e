package kit

import "k8s.io/apimachinery/pkg/types"

// MergePatch is the content type of merge patches.
const MergePatch = types.MergePatchType

// Paths below a logical cluster.
const (
	APIsV1Alpha1       = "/apis/apis.kcp.io/v1alpha1/"
	APIsV1Alpha2       = "/apis/apis.kcp.io/v1alpha2/"
	CachePath          = "/apis/cache.kcp.io/v1alpha1/"
	ConfigMapsPath     = "/api/v1/namespaces/default/configmaps"
	DefinitionsPath    = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	LogicalClusterPath = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	PodsPath           = "/api/v1/namespaces/default/pods"
	RBACPath           = "/apis/rbac.authorization.k8s.io/v1/"
	Registration       = "/apis/admissionregistration.k8s.io/v1/"
	TenancyPath        = "/apis/tenancy.kcp.io/v1alpha1/"
	// WidgetsPath is the path of the resource that most tests export.
	WidgetsPath = "/apis/example.org/v1/namespaces/default/widgets"
)

// RootCAConfigMap is the ConfigMap with the root CA in every namespace.
const RootCAConfigMap = "kube-root-ca.crt"

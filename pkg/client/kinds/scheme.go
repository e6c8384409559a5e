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
)

var (
	// Scheme contains the kinds of this package's resources, and those of request options and reviews.
	Scheme = newScheme()
	// Codecs encodes and decodes the kinds of Scheme.
	Codecs = serializer.NewCodecFactory(Scheme)
)

// clusterCached contains kcp's other names of cached resources with the types of the SDK.
var clusterCached = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	gv := cachev1alpha1.SchemeGroupVersion
	scheme.AddKnownTypeWithName(gv.WithKind("ClusterCachedResource"), &cachev1alpha1.CachedResource{})
	scheme.AddKnownTypeWithName(gv.WithKind("ClusterCachedResourceList"), &cachev1alpha1.CachedResourceList{})
	scheme.AddKnownTypes(gv, &ClusterCachedResourceEndpointSlice{}, &ClusterCachedResourceEndpointSliceList{})
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

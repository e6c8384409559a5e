package apis

import (
	"github.com/kcp-dev/sdk/apis/apis"
	"github.com/kcp-dev/sdk/apis/core"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// withoutIdentity contains, by group, the resources that can be claimed and that every logical cluster has without
// a binding.
var withoutIdentity = map[string]sets.Set[string]{
	corev1.GroupName:         sets.New("namespaces", "configmaps", "secrets", "serviceaccounts", "events", "resourcequotas", "limitranges"),
	eventsv1.GroupName:       sets.New("events"),
	coordinationv1.GroupName: sets.New("leases"),
	certificatesv1.GroupName: sets.New("certificatesigningrequests"),
	rbacv1.GroupName:         sets.New("roles", "rolebindings", "clusterroles", "clusterrolebindings"),
	admissionregistrationv1.GroupName: sets.New("validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
	apiextensionsv1.GroupName:  sets.New("customresourcedefinitions"),
	authorizationv1.GroupName:  sets.New("subjectaccessreviews", "localsubjectaccessreviews"),
	authenticationv1.GroupName: sets.New("tokenreviews"),
	core.GroupName:             sets.New("logicalclusters"),
	apis.GroupName:             sets.New("apibindings", "apiexports", "apiresourceschemas", "apiexportendpointslices", "apiconversions"),
}

// hasIdentity reports whether a resource is defined by an export, so that claims must specify an identity.
func hasIdentity(group, resource string) bool { return !withoutIdentity[group].Has(resource) }

package virtual

import (
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kubernetesscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// builtInKinds contains the types of built-in kinds.
var builtInKinds = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(kubernetesscheme.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}()

// encodedClient returns a client of a group version that sends and accepts one encoding.
func encodedClient(k kit.WorkspaceClient, gv schema.GroupVersion, contentType string) *rest.RESTClient {
	k.T.Helper()
	config := rest.CopyConfig(k.Config)
	config.Host += k.PathPrefix + "/clusters/" + k.ClusterName
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.GroupVersion, config.ContentType = &gv, contentType
	config.NegotiatedSerializer = serializer.NewCodecFactory(builtInKinds).WithoutConversion()
	config.QPS = -1
	client, err := rest.RESTClientFor(config)
	require.NoError(k.T, err)
	return client
}

// builtInObjects returns objects of the built-in kinds that can be claimed, by resource.
func builtInObjects(t *testing.T, name string) map[schema.GroupVersionResource]runtime.Object {
	t.Helper()
	named, namespaced := metav1.ObjectMeta{Name: name}, metav1.ObjectMeta{Name: name, Namespace: "default"}
	ref := corev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "x"}
	exact := admissionregistrationv1.Exact
	matches := &admissionregistrationv1.MatchResources{MatchPolicy: &exact, ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"example.org"}, APIVersions: []string{"v1"}, Resources: []string{"none"}},
	}}}}
	core, registration, rbac := corev1.SchemeGroupVersion, admissionregistrationv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion
	return map[schema.GroupVersionResource]runtime.Object{
		core.WithResource("namespaces"):                                              &corev1.Namespace{ObjectMeta: named},
		core.WithResource("configmaps"):                                              &corev1.ConfigMap{ObjectMeta: namespaced},
		core.WithResource("secrets"):                                                 &corev1.Secret{ObjectMeta: namespaced},
		core.WithResource("serviceaccounts"):                                         &corev1.ServiceAccount{ObjectMeta: namespaced},
		core.WithResource("events"):                                                  &corev1.Event{ObjectMeta: namespaced, InvolvedObject: ref},
		core.WithResource("resourcequotas"):                                          &corev1.ResourceQuota{ObjectMeta: namespaced},
		core.WithResource("limitranges"):                                             &corev1.LimitRange{ObjectMeta: namespaced},
		coordinationv1.SchemeGroupVersion.WithResource("leases"):                     &coordinationv1.Lease{ObjectMeta: namespaced},
		certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"): kit.NewSigningRequest(t, name, "example.org/none", pkix.Name{CommonName: name}),
		apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"): definitionOf(name+"s", "example.com"),
		eventsv1.SchemeGroupVersion.WithResource("events"): &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-new", Namespace: "default"}, Regarding: ref, EventTime: metav1.NowMicro(), Type: "Normal",
			Reason: "Made", Action: "Make", ReportingController: "example.org/test", ReportingInstance: "test",
		},
		rbac.WithResource("roles"):                                     &rbacv1.Role{ObjectMeta: namespaced},
		rbac.WithResource("rolebindings"):                              &rbacv1.RoleBinding{ObjectMeta: namespaced, RoleRef: rbacv1.RoleRef{APIGroup: rbac.Group, Kind: "Role", Name: "x"}},
		rbac.WithResource("clusterroles"):                              &rbacv1.ClusterRole{ObjectMeta: named},
		rbac.WithResource("clusterrolebindings"):                       &rbacv1.ClusterRoleBinding{ObjectMeta: named, RoleRef: rbacv1.RoleRef{APIGroup: rbac.Group, Kind: "ClusterRole", Name: "x"}},
		registration.WithResource("validatingwebhookconfigurations"):   &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: named},
		registration.WithResource("mutatingwebhookconfigurations"):     &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: named},
		registration.WithResource("validatingadmissionpolicybindings"): &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "x", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}},
		registration.WithResource("mutatingadmissionpolicybindings"):   &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: named, Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "x"}},
		registration.WithResource("validatingadmissionpolicies"): &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: named, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matches, Validations: []admissionregistrationv1.Validation{{Expression: "true"}},
		}},
		registration.WithResource("mutatingadmissionpolicies"): &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: named, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: matches, ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: "Object{}"}}},
		}},
	}
}

func definitionOf(plural, group string) *apiextensionsv1.CustomResourceDefinition {
	singular := strings.TrimSuffix(plural, "s")
	kind := strings.ToUpper(singular[:1]) + singular[1:]
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: singular, Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}

// testClaimedKinds checks that objects of all built-in kinds that can be claimed are created, read, listed and watched through the
// virtual workspace, in each encoding.
func testClaimedKinds(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "claimed-kinds", 1)
	k := consumers[0]
	all, in := provider.ThroughExport("e", "*"), provider.ThroughExport("e", k.ClusterName)
	var claims []string
	for gvr := range builtInObjects(t, "x") {
		if gvr.Group != eventsv1.GroupName { // the same objects as in the core group
			claims = append(claims, fmt.Sprintf(`{"group":%q,"resource":%q,"verbs":["*"]%%[1]s}`, gvr.Group, gvr.Resource))
		}
	}
	for _, resource := range []string{"apiexports", "apiresourceschemas", "apiexportendpointslices", "apiconversions"} {
		claims = append(claims, fmt.Sprintf(`{"group":"apis.kcp.io","resource":%q,"verbs":["*"]%%[1]s}`, resource))
	}
	claims = append(claims, `{"group":"core.kcp.io","resource":"logicalclusters","verbs":["*"]%[1]s}`)
	joined := "[" + strings.Join(claims, ",") + "]"
	provider.ClaimInExport(fmt.Sprintf(joined, ""))
	k.AcceptClaims(fmt.Sprintf(joined, `,"selector":{"matchAll":true},"state":"Accepted"`))
	in.UntilCode(http.StatusOK, http.MethodGet, kit.ConfigMapsPath, "")
	for name, contentType := range map[string]string{"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf} {
		for gvr, obj := range builtInObjects(t, name) {
			t.Run(name+" "+gvr.GroupResource().String(), func(t *testing.T) {
				testClaimedKind(t, encodedClient(all.ForTest(t), gvr.GroupVersion(), contentType), encodedClient(in.ForTest(t), gvr.GroupVersion(), contentType), gvr.Resource, obj)
			})
		}
	}

	// If a kind is a custom resource, it has no protobuf encoding.
	const people = "v1.people.example.org"
	in.Create(kit.APIsV1Alpha1+"apiresourceschemas", kit.PeopleSchema, people)
	in.Create(kit.APIsV1Alpha1+"apiconversions", "%s", kit.Conversion(people, "self"))
	in.Create(kit.APIsV1Alpha2+"apiexports", `{"metadata":{"name":"made"}}`)
	in.Create(kit.APIsV1Alpha1+"apiexportendpointslices", `{"metadata":{"name":"another"},"spec":{"export":{"path":%q,"name":"made"}}}`, k.ClusterName)
	for path, name := range map[string]string{
		kit.APIsV1Alpha1 + "apiresourceschemas": people, kit.APIsV1Alpha1 + "apiconversions": people, kit.APIsV1Alpha2 + "apiexports": "made", kit.APIsV1Alpha1 + "apiexportendpointslices": "another",
		"/apis/core.kcp.io/v1alpha1/logicalclusters": "cluster",
	} {
		parts := strings.Split(path, "/")
		kit.Next(t, kit.WatchThrough(all, schema.GroupVersionResource{Group: parts[2], Version: parts[3], Resource: parts[4]}, ""), watch.Added, name)
		require.Len(t, claimLabelsIn(in.Get(path+"/"+name).GetLabels()), 1, path)
		require.Contains(t, kit.ItemNames(in.Get(path)), name)
		require.Contains(t, kit.ItemNames(all.Get(path)), name)
		kit.RequireCode(t, in.Config, kit.Request{Path: in.PathPrefix + "/clusters/" + in.ClusterName + path, Header: http.Header{"Accept": {runtime.ContentTypeProtobuf}}}, http.StatusNotAcceptable)
	}
}

// testClaimedKind creates and reads an object through the virtual workspace of one consumer, and observes it in that of all.
func testClaimedKind(t *testing.T, all, in *rest.RESTClient, resource string, obj runtime.Object) {
	t.Helper()
	object, err := meta.Accessor(obj)
	require.NoError(t, err)
	var watches []watch.Interface
	for _, vw := range []*rest.RESTClient{all, in} {
		w, err := vw.Get().Resource(resource).Param("watch", "true").Watch(t.Context())
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		watches = append(watches, w)
	}
	namespace := object.GetNamespace()
	_, err = in.Post().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Body(obj).Do(t.Context()).Get()
	require.NoError(t, err)
	read, err := in.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Name(object.GetName()).Do(t.Context()).Get()
	require.NoError(t, err)
	found, err := meta.Accessor(read)
	require.NoError(t, err)
	require.Len(t, claimLabelsIn(found.GetLabels()), 1)
	for i, vw := range []*rest.RESTClient{all, in} {
		list, err := vw.Get().Resource(resource).Do(t.Context()).Get()
		require.NoError(t, err)
		listed := false
		require.NoError(t, meta.EachListItem(list, func(item runtime.Object) error {
			one, err := meta.Accessor(item)
			listed = listed || err == nil && one.GetUID() == found.GetUID()
			return err
		}))
		require.True(t, listed, "the list must contain the object")
		for timeout := time.After(kit.Timeout); ; {
			select {
			case event, open := <-watches[i].ResultChan():
				require.True(t, open, "the watch ended")
				one, err := meta.Accessor(event.Object)
				require.NoError(t, err, "%v", event)
				if one.GetUID() != found.GetUID() {
					continue
				}
				require.Equal(t, watch.Added, event.Type)
				require.Len(t, claimLabelsIn(one.GetLabels()), 1)
			case <-timeout:
				require.Fail(t, "no event of the object within "+kit.Timeout.String())
			}
			break
		}
	}
}

// testClaimedReviews checks that reviews that can be claimed are evaluated in the consumer's workspace, and that self reviews cannot be
// claimed.
func testClaimedReviews(t *testing.T, e *kit.Env) {
	provider, _, consumers := kit.ConsumersOf(t, e, "reviews", 1)
	k := consumers[0]
	in := provider.ThroughExport("e", k.ClusterName)
	const (
		authorization = "/apis/authorization.k8s.io/v1/"
		local         = authorization + "namespaces/default/localsubjectaccessreviews"
		tokens        = "/apis/authentication.k8s.io/v1/tokenreviews"
		claims        = `{"group":"authorization.k8s.io","resource":"localsubjectaccessreviews","verbs":["create"]%[1]s},{"group":"authentication.k8s.io","resource":"tokenreviews","verbs":["create"]%[1]s}`
	)
	k.BindRole("user", "cluster-admin", "user")
	reviewOf := func(user string) string {
		return fmt.Sprintf(`{"apiVersion":"authorization.k8s.io/v1","kind":"LocalSubjectAccessReview","metadata":{"namespace":"default"},"spec":{"user":%q,"resourceAttributes":{"namespace":"default","verb":"get","resource":"secrets"}}}`, user)
	}
	review := func(of kit.WorkspaceClient) string {
		return fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":%q}}`, of.ServiceAccountToken())
	}
	ofConsumer, ofProvider := review(k), review(provider)
	for path, body := range map[string]string{local: reviewOf("user"), tokens: ofConsumer} {
		in.RequireCode(http.StatusForbidden, http.MethodPost, path, body)
	}
	provider.ClaimInExport(`[` + fmt.Sprintf(claims, "") + `]`)
	k.AcceptClaims(`[` + fmt.Sprintf(claims, `,"selector":{"matchAll":true},"state":"Accepted"`) + `]`)
	in.Eventually("the claims apply", func() bool {
		code, _ := in.TryDo(http.MethodPost, local, reviewOf("user"))
		other, _ := in.TryDo(http.MethodPost, tokens, ofConsumer)
		return code == http.StatusCreated && other == http.StatusCreated
	})
	in.Eventually("the review is evaluated in the consumer's workspace", func() bool { return kit.Field(in.Create(local, "%s", reviewOf("user")), "status", "allowed") == true })
	require.Equal(t, false, kit.Field(in.Create(local, "%s", reviewOf("other")), "status", "allowed"))
	require.Equal(t, false, kit.Field(provider.Create(local, "%s", reviewOf("user")), "status", "allowed"), "the user has no permissions in the provider's workspace")

	mine := in.Create(tokens, "%s", ofConsumer)
	require.Equal(t, true, kit.Field(mine, "status", "authenticated"), "%v", mine.Object)
	require.Equal(t, "system:serviceaccount:default:default", kit.Field(mine, "status", "user", "username"))
	for _, of := range []string{ofConsumer, ofProvider} {
		require.Equal(t, k.Create(tokens, "%s", of).Object["status"], in.Create(tokens, "%s", of).Object["status"], "the result must be that of the consumer")
		require.NotEqual(t, provider.Create(tokens, "%s", of).Object["status"], in.Create(tokens, "%s", of).Object["status"], "the result must not be that of the provider")
	}

	// Self reviews must be evaluated in the logical cluster of the user.
	for kind, path := range map[string]string{
		"SelfSubjectAccessReview": authorization + "selfsubjectaccessreviews", "SelfSubjectRulesReview": authorization + "selfsubjectrulesreviews",
		"SelfSubjectReview": "/apis/authentication.k8s.io/v1/selfsubjectreviews",
	} {
		parts := strings.Split(path, "/")
		message := in.RequireCode(http.StatusForbidden, http.MethodPost, path, fmt.Sprintf(`{"apiVersion":"%s/%s","kind":%q,"spec":{}}`, parts[2], parts[3], kind))
		require.Contains(t, message, "no APIBinding in the logical cluster")
		provider.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.APIsV1Alpha2+"apiexports/e", fmt.Sprintf(`{"spec":{"permissionClaims":[{"group":%q,"resource":%q,"verbs":["create"]}]}}`, parts[2], parts[4]))
	}
}

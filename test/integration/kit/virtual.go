package kit

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// NewProviderOn creates a provider. Its virtual workspaces must be read on shard root, because its consumers are there.
func NewProviderOn(e *Env, name string, shard int) WorkspaceClient {
	e.T.Helper()
	k := NewWorkspaceClientOn(e, name, shard)
	k.VirtualWorkspaceConfig = e.Shard(0)
	return k
}

// InitialEvents watches the path, which ends with a query, and returns the events up to the bookmark after the initial state.
func InitialEvents(t *testing.T, config *rest.Config, path string) string {
	t.Helper()
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path+"watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", nil)
	require.NoError(t, err)
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, http.StatusOK, response.StatusCode)
	var events strings.Builder
	for reader := bufio.NewReader(response.Body); ; {
		event, err := reader.ReadString('\n')
		require.NoError(t, err, "%s", events.String())
		events.WriteString(event)
		if strings.Contains(event, metav1.InitialEventsAnnotationKey) {
			return events.String()
		}
	}
}

// ConsumersOf creates a provider with an export of widgets, and consumers that bind it.
func ConsumersOf(t *testing.T, e *Env, name string, n int) (provider WorkspaceClient, identity string, consumers []WorkspaceClient) {
	t.Helper()
	return ConsumersOn(t, e, 0, name, n)
}

// ConsumersOn is ConsumersOf with the provider on another shard.
func ConsumersOn(t *testing.T, e *Env, shard int, name string, n int) (provider WorkspaceClient, identity string, consumers []WorkspaceClient) {
	t.Helper()
	if shard > 0 {
		name += "-far"
	}
	provider = NewProviderOn(e, name+"-provider", shard).ForTest(t)
	identity = provider.CreateExport("e", provider.CreateSchema("v1", "widgets", "size"))
	for i := range n {
		k := NewWorkspaceClient(e, fmt.Sprintf("%s-%d", name, i)).ForTest(t)
		k.BindPathReady("e", provider.ClusterName, "e")
		provider.ThroughExport("e", k.ClusterName).UntilCode(http.StatusOK, http.MethodGet, "/apis/example.org/v1/widgets", "")
		consumers = append(consumers, k)
	}
	return provider, identity, consumers
}

// WatchThrough watches a resource through a virtual workspace.
func WatchThrough(k WorkspaceClient, gvr schema.GroupVersionResource, namespace string) watch.Interface {
	k.T.Helper()
	w, err := DynamicThrough(k).Resource(gvr).Namespace(namespace).Watch(k.T.Context(), metav1.ListOptions{ResourceVersion: "0", AllowWatchBookmarks: true})
	require.NoError(k.T, err)
	k.T.Cleanup(w.Stop)
	return w
}

// DynamicThrough returns a dynamic client of a virtual workspace.
func DynamicThrough(k WorkspaceClient) dynamic.Interface {
	k.T.Helper()
	config := rest.CopyConfig(k.Config)
	config.Host += k.PathPrefix + "/clusters/" + k.ClusterName
	clients, err := dynamic.NewForConfig(config)
	require.NoError(k.T, err)
	return clients
}

// Next waits for an event of an object, and ignores others.
func Next(t *testing.T, w watch.Interface, kind watch.EventType, name string) *unstructured.Unstructured {
	t.Helper()
	for {
		select {
		case event, open := <-w.ResultChan():
			require.True(t, open, "the watch ended")
			u, _ := event.Object.(*unstructured.Unstructured)
			if event.Type == kind && u.GetName() == name {
				return u
			}
			require.NotEqual(t, watch.Error, event.Type, "%v", event.Object)
		case <-time.After(Timeout):
			require.Fail(t, "no event within "+Timeout.String(), "%s %s", kind, name)
		}
	}
}

// UntilListed waits until a list contains these objects.
func UntilListed(k WorkspaceClient, path string, want ...string) (all []unstructured.Unstructured) {
	k.T.Helper()
	EventuallyEqual(k.Env, append([]string{"200"}, want...), func() []string {
		code, text := k.TryDo(http.MethodGet, path, "")
		list := &unstructured.UnstructuredList{}
		if code == http.StatusOK && list.UnmarshalJSON([]byte(text)) != nil {
			return []string{text}
		}
		all = list.Items
		return append([]string{fmt.Sprint(code)}, Names(all)...)
	}, "status code and names of %s", path)
	return all
}

// OnShard returns a client of another shard.
func OnShard(k WorkspaceClient, shard int) WorkspaceClient {
	k.Config = k.Shard(shard)
	return k
}

// UntilPhase waits until an object has a phase.
func UntilPhase(k WorkspaceClient, path, phase string) {
	k.T.Helper()
	EventuallyEqual(k.Env, any(phase), func() any { return Field(k.Get(path), "status", "phase") }, "phase of %s", path)
}

// WriteAs sends a write with a content type of application/<kind>, and returns status code and body.
func WriteAs(k WorkspaceClient, method, path, kind, body string) (code int, message string) {
	k.T.Helper()
	if kind == "" {
		kind = "json"
	}
	code, response := Do(k.T, k.Config, Request{Method: method, Path: k.PathPrefix + "/clusters/" + k.ClusterName + path, Body: body, Header: http.Header{"Content-Type": {"application/" + kind}}})
	return code, string(response)
}

// ResourceVersions returns the names and versions of the objects of a list, by UID.
func ResourceVersions(k WorkspaceClient, path string) map[string]string {
	k.T.Helper()
	all := map[string]string{}
	for _, item := range Items(k.Get(path)) {
		if item.GetName() != RootCAConfigMap { // created by a controller
			all[string(item.GetUID())] = item.GetName() + " " + item.GetResourceVersion()
		}
	}
	return all
}

// PeopleSchema has two versions with different fields for the same content.
const PeopleSchema = `{"metadata":{"name":%q},"spec":{"group":"example.org","scope":"Namespaced","conversion":{"strategy":"None"},"names":{"plural":"people","singular":"person","kind":"Person","listKind":"PersonList"},"versions":[
{"name":"v1","served":true,"storage":true,"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"first":{"type":"string"},"last":{"type":"string"}}}}}},
{"name":"v2","served":true,"storage":false,"schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"name":{"type":"object","properties":{"first":{"type":"string"},"last":{"type":"string"}}},"age":{"type":"integer"}}}}}}]}}`

// Conversion returns an APIConversion between the versions of PeopleSchema.
func Conversion(name, last string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"conversions":[
{"from":"v1","to":"v2","rules":[{"field":".spec.first","destination":".spec.name.first"},{"field":".spec.last","destination":".spec.name.last","transformation":%q}]},
{"from":"v2","to":"v1","rules":[{"field":".spec.name.first","destination":".spec.first"},{"field":".spec.name.last","destination":".spec.last"}],"preserve":[".spec.age"]}]}}`, name, last)
}

// WorkspaceBody returns a Workspace without a type.
func WorkspaceBody(name string) string {
	return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q}}`, name)
}

// CreatePolicy creates a policy for objects of a group, and its binding. It denies objects for which the validation is false. If params
// is not "", it is the name of a ConfigMap with parameters.
func CreatePolicy(k WorkspaceClient, name, group, validation, params string) {
	k.T.Helper()
	kind, ref := "", ""
	if params != "" {
		kind, ref = `"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},`, `,"paramRef":{"name":"`+params+`","namespace":"default","parameterNotFoundAction":"Deny"}`
	}
	k.Create(Registration+"validatingadmissionpolicies", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicy","metadata":{"name":%q},"spec":{%s"matchConstraints":{"resourceRules":[{"operations":["CREATE","UPDATE"],"apiGroups":[%q],"apiVersions":["*"],"resources":["*"]}]},"validations":[{"expression":%q}]}}`, name, kind, group, validation)
	k.Create(Registration+"validatingadmissionpolicybindings", `{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingAdmissionPolicyBinding","metadata":{"name":%q},"spec":{"policyName":%q,"validationActions":["Deny"]%s}}`, name, name, ref)
}

// AbsentOwner is metadata with an owner that does not exist.
const AbsentOwner = `{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"none","uid":"00000000-0000-0000-0000-000000000000"}]}`

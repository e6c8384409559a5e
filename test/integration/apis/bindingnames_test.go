package apis

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// apiNames are the names of an API.
type apiNames struct{ plural, singular, kind, list, short string }

func (n apiNames) String() string {
	return fmt.Sprintf(`{"plural":%q,"singular":%q,"kind":%q,"listKind":%q,"shortNames":[%q]}`, n.plural, n.singular, n.kind, n.list, n.short)
}

// exportNamed creates an export of a resource in a group, and returns the name of the schema and the export.
func exportNamed(k kit.WorkspaceClient, prefix, group string, n apiNames) string {
	k.T.Helper()
	name := prefix + "." + n.plural + "." + group
	k.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":%q,"scope":"Cluster","names":%s,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}]}}`, name, group, n)
	k.CreateExport(name, name)
	return name
}

func definitionNamed(group string, n apiNames) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s.%s"},"spec":{"group":%[2]q,"scope":"Cluster","names":%s,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`, n.plural, group, n)
}

// conflict is a name that two APIs of a group share.
type conflict struct {
	of, name string
	second   apiNames
	// reason is that of a definition that waits for the name. A definition of the same resource must be rejected.
	reason string
}

var foos = apiNames{plural: "foos", singular: "foo", kind: "Foo", list: "FooList", short: "fo"}

func conflicts() []conflict {
	with := func(change func(n *apiNames)) apiNames {
		n := apiNames{plural: "bars", singular: "bar", kind: "Bar", list: "BarList", short: "ba"}
		change(&n)
		return n
	}
	return []conflict{
		{"resource", "foos", with(func(n *apiNames) { n.plural = "foos" }), ""},
		{"singular", "foo", with(func(n *apiNames) { n.singular = "foo" }), "SingularConflict"},
		{"kind", "Foo", with(func(n *apiNames) { n.kind = "Foo" }), "KindConflict"},
		{"list", "FooList", with(func(n *apiNames) { n.list = "FooList" }), "ListKindConflict"},
		{"short", "fo", with(func(n *apiNames) { n.short = "fo" }), "ShortNamesConflict"},
		// Singular and short names are one set, and kinds and list kinds are another.
		{"shortened", "foo", with(func(n *apiNames) { n.short = "foo" }), "ShortNamesConflict"},
		{"lists", "FooList", with(func(n *apiNames) { n.kind = "FooList" }), "KindConflict"},
	}
}

// contest is a conflict in a consumer, in a separate group.
type contest struct {
	kit.WorkspaceClient
	conflict

	provider             kit.WorkspaceClient
	group, first, second string
}

// served returns the status code of a LIST of an API.
func (c contest) served(n apiNames) int {
	c.T.Helper()
	code, _ := c.TryDo(http.MethodGet, "/apis/"+c.group+"/v1/"+n.plural, "")
	return code
}

// requireWaiting waits until the second binding reports the conflict, and returns its generation.
func (c contest) requireWaiting(owner string) int64 {
	c.T.Helper()
	b := c.UntilBinding(c.second, "InitialBindingCompleted", "False NamingConflicts")
	message := fmt.Sprint(kit.Field(b, "status", "conditions"))
	require.Contains(c.T, message, fmt.Sprintf("%q is already in use by %s: delete it, or this binding", c.name, owner))
	require.Equal(c.T, "Binding", kit.Field(b, "status", "phase"))
	require.Equal(c.T, "False NamingConflicts", kit.Condition(b, "Ready"))
	require.Equal(c.T, http.StatusOK, c.served(foos), "the first API must be served")
	if c.conflict.second.plural != foos.plural {
		require.Equal(c.T, http.StatusNotFound, c.served(c.conflict.second))
	}
	return b.GetGeneration()
}

// requireReady waits until the second binding has the names, without being changed.
func (c contest) requireReady(generation int64) {
	c.T.Helper()
	b := c.UntilBinding(c.second, "Ready", "True <nil>")
	require.Equal(c.T, generation, b.GetGeneration(), "the spec must not change")
	require.Equal(c.T, http.StatusOK, c.served(c.conflict.second))
}

// testConflicts checks that each name in a group belongs to the first binding or definition. The other one reports the name, is not
// served, and gets the name if the first one is deleted.
func testConflicts(t *testing.T, e *kit.Env) {
	provider, k := kit.NewWorkspaceClient(e, "conflicts-provider").ForTest(t), kit.NewWorkspaceClient(e, "conflicts-consumer").ForTest(t)
	for name, test := range map[string]func(c contest){
		"binding-binding": bindingWaitsForBinding, "binding-definition": bindingWaitsForDefinition, "definition-binding": definitionWaitsForBinding,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, c := range conflicts() {
				t.Run(c.of, func(t *testing.T) {
					t.Parallel()
					group := c.of + "." + name + ".example.org"
					test(contest{k.ForTest(t), c, provider.ForTest(t), group, "first." + group, "second." + group})
				})
			}
		})
	}
}

func bindingWaitsForBinding(c contest) {
	c.BindReady(c.first, c.provider, exportNamed(c.provider, "v1", c.group, foos))
	c.Bind(c.second, c.provider, exportNamed(c.provider, "v2", c.group, c.conflict.second))
	generation := c.requireWaiting(fmt.Sprintf("APIBinding %q", c.first))
	c.Delete(kit.APIsV1Alpha2 + "apibindings/" + c.first)
	c.requireReady(generation)
}

func bindingWaitsForDefinition(c contest) {
	c.Create(kit.DefinitionsPath, "%s", definitionNamed(c.group, foos))
	c.Bind(c.second, c.provider, exportNamed(c.provider, "v1", c.group, c.conflict.second))
	generation := c.requireWaiting("CustomResourceDefinition foos." + c.group)
	c.Delete(kit.DefinitionsPath + "/foos." + c.group)
	c.requireReady(generation)
}

func definitionWaitsForBinding(c contest) {
	c.BindReady(c.first, c.provider, exportNamed(c.provider, "v1", c.group, foos))
	second := c.conflict.second
	if c.reason == "" {
		message := c.RequireCode(http.StatusForbidden, http.MethodPost, kit.DefinitionsPath, definitionNamed(c.group, second))
		require.Contains(c.T, strings.ReplaceAll(message, `\`, ""), fmt.Sprintf("is served by APIBinding %q", c.first))
		return
	}
	c.Create(kit.DefinitionsPath, "%s", definitionNamed(c.group, second))
	name := kit.DefinitionsPath + "/" + second.plural + "." + c.group
	crd := c.Get(name)
	require.Equal(c.T, "False "+c.reason, kit.Condition(crd, "NamesAccepted"))
	require.Contains(c.T, fmt.Sprint(kit.Field(crd, "status", "conditions")), fmt.Sprintf("%q", c.name))
	require.Equal(c.T, "False NotAccepted", kit.Condition(crd, "Established"))
	require.Equal(c.T, http.StatusNotFound, c.served(second))
	c.Delete(kit.APIsV1Alpha2 + "apibindings/" + c.first)
	c.Eventually("the definition has the names", func() bool {
		_, message := c.TryDo(http.MethodGet, name, "")
		return strings.Contains(message, `"InitialNamesAccepted"`) && c.served(second) == http.StatusOK
	})
	require.Equal(c.T, crd.GetGeneration(), c.Get(name).GetGeneration(), "the spec must not change")
}

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

// exportNamed makes an export of a resource in a group, and returns the name of both.
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

// conflict is a name that a second API of a group shares with the first one.
type conflict struct {
	of, name string
	second   apiNames
	// reason is that of a definition that waits for it; one of the same resource is refused.
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
		// Singulars and short names, and kinds and those of lists, are one set each.
		{"shortened", "foo", with(func(n *apiNames) { n.short = "foo" }), "ShortNamesConflict"},
		{"lists", "FooList", with(func(n *apiNames) { n.kind = "FooList" }), "KindConflict"},
	}
}

// contest is a conflict in a consumer, in a group of its own.
type contest struct {
	kit.WorkspaceClient
	conflict

	provider             kit.WorkspaceClient
	group, first, second string
}

// served is the answer to a list of an API.
func (c contest) served(n apiNames) int {
	c.T.Helper()
	code, _ := c.TryDo(http.MethodGet, "/apis/"+c.group+"/v1/"+n.plural, "")
	return code
}

// waits has the second binding say which name it waits for, and returns its generation.
func (c contest) waits(owner string) int64 {
	c.T.Helper()
	b := c.UntilBinding(c.second, "InitialBindingCompleted", "False NamingConflicts")
	says := fmt.Sprint(kit.Field(b, "status", "conditions"))
	require.Contains(c.T, says, fmt.Sprintf("%q is already in use by %s: delete it, or this binding", c.name, owner))
	require.Equal(c.T, "Binding", kit.Field(b, "status", "phase"))
	require.Equal(c.T, "False NamingConflicts", kit.Condition(b, "Ready"))
	require.Equal(c.T, http.StatusOK, c.served(foos), "who came first has it")
	if c.conflict.second.plural != foos.plural {
		require.Equal(c.T, http.StatusNotFound, c.served(c.conflict.second))
	}
	return b.GetGeneration()
}

// gets waits until the second binding, which nobody touches, has the names.
func (c contest) gets(generation int64) {
	c.T.Helper()
	b := c.UntilBinding(c.second, "Ready", "True <nil>")
	require.Equal(c.T, generation, b.GetGeneration(), "nobody has touched it")
	require.Equal(c.T, http.StatusOK, c.served(c.conflict.second))
}

// testConflicts: each kind of name of a group is had once, by a binding or a definition, whichever
// came first. The other one says which name it waits for, serves nothing, and has it when that
// one goes, without being touched.
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
	c.Bind(c.first, c.provider, exportNamed(c.provider, "v1", c.group, foos))
	c.UntilBinding(c.first, "Ready", "True <nil>")
	c.Bind(c.second, c.provider, exportNamed(c.provider, "v2", c.group, c.conflict.second))
	generation := c.waits(fmt.Sprintf("APIBinding %q", c.first))
	c.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/"+c.first, "")
	c.gets(generation)
}

func bindingWaitsForDefinition(c contest) {
	c.Create(kit.DefinitionsPath, "%s", definitionNamed(c.group, foos))
	c.Bind(c.second, c.provider, exportNamed(c.provider, "v1", c.group, c.conflict.second))
	generation := c.waits("CustomResourceDefinition foos." + c.group)
	c.Do(http.StatusOK, http.MethodDelete, kit.DefinitionsPath+"/foos."+c.group, "")
	c.gets(generation)
}

func definitionWaitsForBinding(c contest) {
	c.Bind(c.first, c.provider, exportNamed(c.provider, "v1", c.group, foos))
	c.UntilBinding(c.first, "Ready", "True <nil>")
	second := c.conflict.second
	if c.reason == "" {
		code, says := c.TryDo(http.MethodPost, kit.DefinitionsPath, definitionNamed(c.group, second))
		require.Equal(c.T, http.StatusForbidden, code, says)
		require.Contains(c.T, strings.ReplaceAll(says, `\`, ""), fmt.Sprintf("is served by APIBinding %q", c.first))
		return
	}
	c.Create(kit.DefinitionsPath, "%s", definitionNamed(c.group, second))
	name := kit.DefinitionsPath + "/" + second.plural + "." + c.group
	crd := c.Get(name)
	require.Equal(c.T, "False "+c.reason, kit.Condition(crd, "NamesAccepted"))
	require.Contains(c.T, fmt.Sprint(kit.Field(crd, "status", "conditions")), fmt.Sprintf("%q", c.name))
	require.Equal(c.T, "False NotAccepted", kit.Condition(crd, "Established"))
	require.Equal(c.T, http.StatusNotFound, c.served(second))
	c.Do(http.StatusOK, http.MethodDelete, kit.APIsV1Alpha2+"apibindings/"+c.first, "")
	c.Eventually("the definition has the names", func() bool {
		_, says := c.TryDo(http.MethodGet, name, "")
		return strings.Contains(says, `"InitialNamesAccepted"`) && c.served(second) == http.StatusOK
	})
	require.Equal(c.T, crd.GetGeneration(), c.Get(name).GetGeneration(), "nobody has touched it")
}

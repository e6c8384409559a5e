package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// apiNames are the names of an API.
type apiNames struct{ plural, singular, kind, list, short string }

func (n apiNames) String() string {
	return fmt.Sprintf(`{"plural":%q,"singular":%q,"kind":%q,"listKind":%q,"shortNames":[%q]}`, n.plural, n.singular, n.kind, n.list, n.short)
}

// exportNamed makes an export of a resource in a group, and returns the name of both.
func (k apiKinds) exportNamed(prefix, group string, n apiNames) string {
	k.t.Helper()
	name := prefix + "." + n.plural + "." + group
	k.create(apisV1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":%q,"scope":"Cluster","names":%s,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}]}}`, name, group, n)
	k.export(name, name)
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
	apiKinds
	conflict

	provider             apiKinds
	group, first, second string
}

// served is the answer to a list of an API.
func (c contest) served(n apiNames) int {
	c.t.Helper()
	code, _ := c.status(http.MethodGet, "/apis/"+c.group+"/v1/"+n.plural, "")
	return code
}

// waits has the second binding say which name it waits for, and returns its generation.
func (c contest) waits(owner string) int64 {
	c.t.Helper()
	b := c.until(c.second, "InitialBindingCompleted", "False NamingConflicts")
	says := fmt.Sprint(field(b, "status", "conditions"))
	require.Contains(c.t, says, fmt.Sprintf("%q is already in use by %s: delete that, or this binding", c.name, owner))
	require.Equal(c.t, "Binding", field(b, "status", "phase"))
	require.Equal(c.t, "False NamingConflicts", condition(b, "Ready"))
	require.Equal(c.t, http.StatusOK, c.served(foos), "who came first has it")
	if c.conflict.second.plural != foos.plural {
		require.Equal(c.t, http.StatusNotFound, c.served(c.conflict.second))
	}
	return b.GetGeneration()
}

// gets waits until the second binding, which nobody touches, has the names.
func (c contest) gets(generation int64) {
	c.t.Helper()
	b := c.until(c.second, "Ready", "True <nil>")
	require.Equal(c.t, generation, b.GetGeneration(), "nobody has touched it")
	require.Equal(c.t, http.StatusOK, c.served(c.conflict.second))
}

// testConflicts: each kind of name of a group is had once, by a binding or a definition, whichever
// came first. The other one says which name it waits for, serves nothing, and has it when that
// one goes, without being touched.
func testConflicts(t *testing.T, e *env) {
	provider, k := newAPIKinds(e, "conflicts-provider").in(t), newAPIKinds(e, "conflicts-consumer").in(t)
	for name, test := range map[string]func(c contest){
		"binding-binding": bindingWaitsForBinding, "binding-definition": bindingWaitsForDefinition, "definition-binding": definitionWaitsForBinding,
	} {
		t.Run(name, func(t *testing.T) {
			for _, c := range conflicts() {
				t.Run(c.of, func(t *testing.T) {
					t.Parallel()
					group := c.of + "." + name + ".example.org"
					test(contest{k.in(t), c, provider.in(t), group, "first." + group, "second." + group})
				})
			}
		})
	}
}

func bindingWaitsForBinding(c contest) {
	c.bind(c.first, c.provider, c.provider.exportNamed("v1", c.group, foos))
	c.until(c.first, "Ready", "True <nil>")
	c.bind(c.second, c.provider, c.provider.exportNamed("v2", c.group, c.conflict.second))
	generation := c.waits(fmt.Sprintf("APIBinding %q", c.first))
	c.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/"+c.first, "")
	c.gets(generation)
}

func bindingWaitsForDefinition(c contest) {
	c.create(definitions, "%s", definitionNamed(c.group, foos))
	c.bind(c.second, c.provider, c.provider.exportNamed("v1", c.group, c.conflict.second))
	generation := c.waits("CustomResourceDefinition foos." + c.group)
	c.ask(http.StatusOK, http.MethodDelete, definitions+"/foos."+c.group, "")
	c.gets(generation)
}

func definitionWaitsForBinding(c contest) {
	c.bind(c.first, c.provider, c.provider.exportNamed("v1", c.group, foos))
	c.until(c.first, "Ready", "True <nil>")
	second := c.conflict.second
	if c.reason == "" {
		code, says := c.status(http.MethodPost, definitions, definitionNamed(c.group, second))
		require.Equal(c.t, http.StatusForbidden, code, says)
		require.Contains(c.t, strings.ReplaceAll(says, `\`, ""), fmt.Sprintf("is served by APIBinding %q", c.first))
		return
	}
	c.create(definitions, "%s", definitionNamed(c.group, second))
	name := definitions + "/" + second.plural + "." + c.group
	crd := c.get(name)
	require.Equal(c.t, "False "+c.reason, condition(crd, "NamesAccepted"))
	require.Contains(c.t, fmt.Sprint(field(crd, "status", "conditions")), fmt.Sprintf("%q", c.name))
	require.Equal(c.t, "False NotAccepted", condition(crd, "Established"))
	require.Equal(c.t, http.StatusNotFound, c.served(second))
	c.ask(http.StatusOK, http.MethodDelete, apisV2+"apibindings/"+c.first, "")
	c.eventually("the definition has the names", func() bool {
		_, says := c.status(http.MethodGet, name, "")
		return strings.Contains(says, `"InitialNamesAccepted"`) && c.served(second) == http.StatusOK
	})
	require.Equal(c.t, crd.GetGeneration(), c.get(name).GetGeneration(), "nobody has touched it")
}

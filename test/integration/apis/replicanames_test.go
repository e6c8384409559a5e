package apis

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestNamesOfReplicas: a binding that one replica of a shard is asked to make, and a definition that
// another one is, compete for the same names. Exactly one of them gets these, on both replicas,
// and the other one gets them as they become free. A few races are run here; who changes how names
// are given runs many (-count=30), on a machine that has other things to do.
func TestNamesOfReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: a race of two replicas, which needs many rounds")
	}
	t.Parallel()
	// A cluster of its own, because the shard has replicas.
	const rounds = 7
	e := kit.Start(t, harness.Options{Replicas: 2})
	provider, k := kit.NewWorkspaceClient(e, "names-provider"), kit.NewWorkspaceClient(e, "names-consumer")
	var replicas [2]kit.WorkspaceClient
	for n := range replicas {
		replicas[n] = kit.WorkspaceClient{Env: e, Config: e.Replica(0, n), ClusterName: k.ClusterName}
	}
	var races []*nameRace
	for round, kinds := 0, conflicts(); round < rounds; round++ {
		group := fmt.Sprintf("round-%d.example.org", round)
		races = append(races, &nameRace{
			conflict: kinds[round%len(kinds)], group: group, replicas: replicas,
			export: exportNamed(provider, "v1", group, foos),
			binds:  replicas[round%2], defines: replicas[1-round%2],
		})
	}
	// A binding needs some steps to have its names: the definition is made later until it loses, and
	// then earlier, so that both come close.
	late := 0
	won := map[bool]int{}
	for _, r := range races {
		r.definesLate = late
		r.run(t, provider)
		if won[r.binding]++; r.binding {
			late /= 2
		} else {
			late = late*3 + 1
		}
	}
	t.Logf("the binding had the names %d times, and the definition %d times", won[true], won[false])
	for _, r := range races { // and nobody else has got them since
		r.agreed(t)
	}
	for _, r := range races {
		r.free(t)
	}
}

// nameRace is a binding and a definition in one group of a logical cluster that share a name.
type nameRace struct {
	conflict

	group, export  string
	replicas       [2]kit.WorkspaceClient
	binds, defines kit.WorkspaceClient
	// definesLate is how many requests are made after the binding before the definition is.
	definesLate int
	// binding is set if the binding has the names, and refused if there is no definition,
	// because the resource was bound.
	binding, refused bool
}

func (r *nameRace) definition() string {
	return kit.DefinitionsPath + "/" + r.second.plural + "." + r.group
}

// run makes both at once, and waits until it is decided.
func (r *nameRace) run(t *testing.T, provider kit.WorkspaceClient) {
	t.Helper()
	var both sync.WaitGroup
	both.Go(func() {
		code, says := r.binds.TryDo(http.MethodPost, kit.APIsV1Alpha2+"apibindings", kit.WithKind(kit.APIsV1Alpha2+"apibindings",
			fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"reference":{"export":{"path":%q,"name":%q}}}}`, r.export, provider.ClusterName, r.export)))
		if code != http.StatusCreated {
			t.Errorf("binding: %d %s", code, says)
		}
	})
	both.Go(func() {
		for range r.definesLate {
			_, _ = r.defines.TryDo(http.MethodGet, r.definition(), "")
		}
		code, says := r.defines.TryDo(http.MethodPost, kit.DefinitionsPath, definitionNamed(r.group, r.second))
		switch {
		case code == http.StatusForbidden && r.reason == "":
			r.refused = true // the resource itself was bound before
		case code != http.StatusCreated:
			t.Errorf("definition: %d %s", code, says)
		}
	})
	both.Wait()
	require.False(t, t.Failed())
	r.replicas[0].ForTest(t).Eventually("one of both has the names of "+r.group, func() bool {
		bound, defined := r.states(r.replicas[0].ForTest(t))
		r.binding = bound == "True"
		return bound == "True" && defined == "False" || bound == "False" && defined == "True"
	})
	r.agreed(t)
}

// states says, as one replica does, whether the binding has its names, and whether the definition
// does, or that it is not decided.
func (r *nameRace) states(k kit.WorkspaceClient) (bound, defined string) {
	k.T.Helper()
	b := k.Get(kit.APIsV1Alpha2 + "apibindings/" + r.export)
	bound, _, _ = strings.Cut(kit.Condition(b, "InitialBindingCompleted"), " ")
	if r.refused {
		return bound, "False"
	}
	crd := k.Get(r.definition())
	accepted, _, _ := strings.Cut(kit.Condition(crd, "NamesAccepted"), " ")
	established, _, _ := strings.Cut(kit.Condition(crd, "Established"), " ")
	if accepted != established {
		return bound, ""
	}
	return bound, accepted
}

// agreed waits until both replicas say and serve what was decided.
func (r *nameRace) agreed(t *testing.T) {
	t.Helper()
	for n, k := range r.replicas {
		k = k.ForTest(t)
		k.Eventually(fmt.Sprintf("replica %d agrees about %s of %s", n, r.of, r.group), func() bool {
			bound, defined := r.states(k)
			return (bound == "True") == r.binding && (defined == "True") == !r.binding && r.serves(k, r.binding, !r.binding)
		})
	}
}

// serves reports whether a replica serves the API of the binding, and that of the definition. Of
// one resource both are one.
func (r *nameRace) serves(k kit.WorkspaceClient, bound, defined bool) bool {
	k.T.Helper()
	code := func(plural string) int {
		code, _ := k.TryDo(http.MethodGet, "/apis/"+r.group+"/v1/"+plural, "")
		return code
	}
	if r.second.plural == foos.plural {
		return code(foos.plural) == http.StatusOK
	}
	want := map[bool]int{true: http.StatusOK, false: http.StatusNotFound}
	return code(foos.plural) == want[bound] && code(r.second.plural) == want[defined]
}

// free deletes the one that has the names. The other one, which nobody touches, gets them.
func (r *nameRace) free(t *testing.T) {
	t.Helper()
	has := kit.APIsV1Alpha2 + "apibindings/" + r.export
	if !r.binding {
		has = r.definition()
	} else if r.refused {
		return // nobody waits
	}
	k := r.replicas[1].ForTest(t)
	k.Do(http.StatusOK, http.MethodDelete, has, "")
	for n, k := range r.replicas {
		k = k.ForTest(t)
		k.Eventually(fmt.Sprintf("the other one has %s of %s on replica %d", r.of, r.group, n), func() bool {
			if code, _ := k.TryDo(http.MethodGet, has, ""); code != http.StatusNotFound {
				return false
			}
			if r.binding {
				return strings.HasPrefix(kit.Condition(k.Get(r.definition()), "Established"), "True") && r.serves(k, false, true)
			}
			return strings.HasPrefix(kit.Condition(k.Get(kit.APIsV1Alpha2+"apibindings/"+r.export), "Ready"), "True") && r.serves(k, true, false)
		})
	}
}

package neighbours

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refused: a definition that is refused holds neither names nor memory.
func refused(t *testing.T, w *world) {
	group := w.mark + ".refused.example"
	client := w.attacker.crds.ApiextensionsV1().CustomResourceDefinitions()
	refuse := func(bad *apiextensionsv1.CustomResourceDefinition) {
		_, err := client.Create(t.Context(), bad, metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err) || apierrors.IsBadRequest(err), "%v", err)
	}
	misnamed := things(group, "v1")
	misnamed.Name = "things.elsewhere.example"
	refuse(misnamed)
	generated := things(group, "v1")
	generated.Name, generated.GenerateName = "", "things-"
	refuse(generated)
	_, err := client.Create(t.Context(), things(group, "v1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	other := w.attacker.define(t, things("other."+group, "v1"))
	moved := other.DeepCopy()
	moved.Spec.Group = group
	_, err = client.Update(t.Context(), moved, metav1.UpdateOptions{})
	require.Error(t, err)
	large := func(i int) {
		bad := things(fmt.Sprintf("n%d.%s", i, group), "v1")
		bad.Name = "things.elsewhere.example"
		bad.Spec.Names.ListKind = strings.Repeat("L", 1<<20)
		refuse(bad)
	}
	large(0)
	before := heap()
	const requests = 6
	for i := range requests {
		large(i + 1)
	}
	requireHeapGrowth(t, before, requests<<20/2, "half of what the refused definitions weigh")

	made := w.attacker.define(t, things(group, "v1"))
	for _, condition := range made.Status.Conditions {
		if condition.Type == apiextensionsv1.NamesAccepted {
			require.Equal(t, apiextensionsv1.ConditionTrue, condition.Status, condition.Message)
		}
	}
	require.Equal(t, "things", made.Status.AcceptedNames.Plural)
}

// versions: what the attacker defines costs nothing for each object of others.
func versions(t *testing.T, w *world) {
	const (
		objects = 200
		weight  = 8 << 10
		count   = 30
	)
	group := w.mark + ".shared.example"
	w.quiet.define(t, things(group, "v1"))
	text := strings.Repeat("x", weight)
	for i := range objects {
		w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", fmt.Sprintf("t%d", i), text))
	}
	w.quiet.must(t, http.MethodGet, "/apis/"+group+"/v1/things", "")
	names := make([]string, 0, count)
	for i := range count {
		names = append(names, fmt.Sprintf("v%d", i+1))
	}
	caches := func() float64 {
		return counters(t, "apiserver_watch_cache_initializations_total", map[string]string{"group": "unexpected"})
	}
	before, made := heap(), caches()
	w.attacker.define(t, things(group, names...))
	for _, version := range names {
		w.attacker.must(t, http.MethodGet, "/apis/"+group+"/"+version+"/things", "")
	}
	// Serving info is the attacker's own; a second copy of the objects is not.
	const all = objects * weight
	require.Less(t, caches()-made, 2.0, "watch caches that the attacker's definition made")
	requireHeapGrowth(t, before, 8*all, "eight times what the objects weigh")
}

// definitions: what it takes to make a definition does not grow with how many
// others there are.
func definitions(t *testing.T, w *world) {
	define := func(n int, prefix string) {
		for i := range n {
			w.attacker.define(t, things(fmt.Sprintf("%s%d.%s.example", prefix, i, w.mark), "v1"))
		}
	}
	read := func() float64 {
		of := map[string]string{"group": apiextensionsv1.GroupName, "resource": "customresourcedefinitions"}
		return counters(t, "apiserver_storage_list_fetched_objects_total", of) + counters(t, "apiserver_cache_list_fetched_objects_total", of)
	}
	const many, few = 60, 10
	define(many, "crowd")
	before := read()
	define(few, "more")
	require.Less(t, read()-before, float64(many), "definitions that were read to make %d beside %d", few, many)
}

// requireHeapGrowth waits until the heap holds less than so many bytes more than before:
// what the shard is about at the moment goes, what leaked stays.
func requireHeapGrowth(t *testing.T, before uint64, bytes int64, what string) {
	t.Helper()
	require.Eventually(t, func() bool { return int64(heap())-int64(before) < bytes }, testTimeout/2, 10*tick, "the heap has grown by more than %d: %s", bytes, what)
}

// heap returns the bytes of the objects that are in use in this process, or 0 with
// -latency.
func heap() uint64 {
	if *latencyFlag {
		return 0
	}
	var stats runtime.MemStats
	for range 3 { // finalizers and weak pointers take more than one round
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

package storage

import (
	"context"
	"maps"
	"sync/atomic"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

const claimLabel = ClaimLabelPrefix + "export"

// labelling returns a backend on which the pods of one logical cluster are claimed.
func labelling(claimed *atomic.Bool) BackendConfig {
	return BackendConfig{ClaimLabels: func(cluster logicalcluster.Name, resource schema.GroupResource, identity string) []ClaimLabel {
		if cluster == "claimed" && resource == podsGR && identity == "" && claimed.Load() {
			return []ClaimLabel{
				{Key: claimLabel, Value: "hash", On: claims.Select(nil)},
				{Key: ClaimLabelPrefix + "other", Value: "hash", On: claims.Select(labels.SelectorFromSet(labels.Set{"not": "there"}))},
			}
		}
		return nil
	}}
}

// TestClaimLabels verifies that reads add claim labels only for claimed objects, and change neither stored nor cached
// objects.
func TestClaimLabels(t *testing.T) {
	var claimed atomic.Bool
	s := open(t, backendOf(t, labelling(&claimed)), podsGR)
	own, other, all := in(t.Context(), "claimed"), in(t.Context(), "other"), request.WithWildcard(t.Context())
	forged := newValuedPod("one", "x")
	forged.Labels[ClaimLabelPrefix+"forged"] = "x"
	create(own, t, s, forged)
	create(other, t, s, newValuedPod("one", "x"))
	at := list(all, t, s, "/pods", listOpts()).ResourceVersion
	plain := map[string]string{"value": "x"}
	labelled := map[string]string{"value": "x", claimLabel: "hash"}

	reads := func(ctx context.Context) []example.Pod {
		found := list(ctx, t, s, "/pods", listOpts()).Items
		found = append(found, list(ctx, t, s, "/pods", page(10, "")).Items...)
		cached := listOpts()
		cached.ResourceVersion = "0"
		found = append(found, list(ctx, t, s, "/pods", cached).Items...)
		initial := watchFrom(ctx, t, s, "/pods", "0", listOpts())
		for range 2 {
			found = append(found, *next(t, initial).Object.(*example.Pod))
			if ctx != all {
				break
			}
		}
		return found
	}
	shows := func(want map[string]string) {
		t.Helper()
		for _, version := range []string{"", "0"} {
			pod := &example.Pod{}
			require.NoError(t, s.Get(own, "/pods/ns/one", storage.GetOptions{ResourceVersion: version}, pod))
			require.Equal(t, want, pod.Labels)
		}
		for _, pod := range append(reads(own), reads(all)...) {
			if logicalcluster.From(&pod) == "claimed" {
				require.Equal(t, want, pod.Labels)
			} else {
				require.Equal(t, plain, pod.Labels)
			}
		}
	}
	shows(plain)
	claimed.Store(true)
	shows(labelled)
	claimed.Store(false)
	shows(plain)
	claimed.Store(true)

	// Watches share an object.
	first, second := watchFrom(all, t, s, "/pods", at, listOpts()), watchFrom(own, t, s, "/pods", at, listOpts())
	updated := update(own, t, s, "/pods/ns/one", changing(func(pod *example.Pod) {
		require.Equal(t, labelled, pod.Labels, "updates must receive the object with its claim labels")
		pod.Labels = maps.Clone(labelled)
		pod.Spec.NodeName = "node"
	}))
	require.Equal(t, labelled, updated.Labels)
	a, b := <-first.ResultChan(), <-second.ResultChan()
	require.Same(t, a.Object, b.Object)
	require.Equal(t, labelled, hub.Unwrap(a.Object).(*example.Pod).Labels)
	deleted := remove(own, t, s, "/pods/ns/one")
	require.Equal(t, labelled, deleted.Labels)
	require.Equal(t, labelled, next(t, first).Object.(*example.Pod).Labels)
}

// TestClaimLabelsOfWrites updates an object with its claim label, without it, and with another value.
func TestClaimLabelsOfWrites(t *testing.T) {
	var claimed atomic.Bool
	claimed.Store(true)
	s := open(t, backendOf(t, labelling(&claimed)), podsGR)
	own := in(t.Context(), "claimed")
	created := create(own, t, s, newPod("ns", "one"))
	require.Equal(t, map[string]string{claimLabel: "hash"}, created.Labels)
	for _, written := range []map[string]string{created.Labels, nil, {}, {claimLabel: "forged", ClaimLabelPrefix + "x": "forged"}} {
		updated := update(own, t, s, "/pods/ns/one", changing(func(pod *example.Pod) { pod.Labels = written }))
		require.Equal(t, created, updated, "%v", written)
	}
}

// TestClaimLabelsAreSelected verifies that selectors with claim labels match them in lists and watches.
func TestClaimLabelsAreSelected(t *testing.T) {
	var claimed atomic.Bool
	claimed.Store(true)
	s := open(t, backendOf(t, labelling(&claimed)), podsGR)
	all := request.WithWildcard(t.Context())
	for _, cluster := range []string{"claimed", "other"} {
		create(in(t.Context(), cluster), t, s, newValuedPod("one", "x"))
	}
	at := list(all, t, s, "/pods", listOpts()).ResourceVersion
	selecting := func(selector string) storage.ListOptions {
		opts := listOpts()
		opts.Predicate.Label = labels.NewSelector().Add(requirement(t, selector)...)
		return opts
	}
	for selector, want := range map[string][]string{
		claimLabel + "=hash":        {"claimed|ns/one"},
		"!" + claimLabel:            {"other|ns/one"},
		claimLabel + "=hash,value":  {"claimed|ns/one"},
		claimLabel + "=hash,!value": {},
		"value=x":                   {"claimed|ns/one", "other|ns/one"},
	} {
		opts := selecting(selector)
		require.Equal(t, want, names(list(all, t, s, "/pods", opts).Items...), selector)
		opts.ResourceVersion, opts.ResourceVersionMatch = at, metav1.ResourceVersionMatchExact
		require.Equal(t, want, names(list(all, t, s, "/pods", opts).Items...), selector)
	}
	w := watchFrom(all, t, s, "/pods", at, selecting(claimLabel+"=hash,value=y"))
	for _, cluster := range []string{"other", "claimed"} {
		update(in(t.Context(), cluster), t, s, "/pods/ns/one", relabel("y"))
	}
	event := next(t, w)
	require.Equal(t, watch.Added, event.Type)
	require.Equal(t, "claimed|ns/one", nameOf(event.Object.(*example.Pod)))
}

// TestClaimLabelsOfCopies verifies that labels are added without changing shared memory.
func TestClaimLabelsOfCopies(t *testing.T) {
	c := &claimLabels{func(logicalcluster.Name, schema.GroupResource, string) []ClaimLabel {
		return []ClaimLabel{
			{Key: claimLabel, Value: "hash", On: claims.Select(labels.SelectorFromSet(labels.Set{"a": "b"}))},
			{Key: ClaimLabelPrefix + "other", Value: "hash", On: claims.Select(labels.SelectorFromSet(labels.Set{"a": "c"}))},
		}
	}, podsGR}
	stored := newPod("ns", "x")
	stored.Annotations, stored.Labels = map[string]string{"kcp.io/cluster": "aa"}, map[string]string{"a": "b"}
	before := stored.DeepCopy()
	shown := c.shown(stored).(*example.Pod)
	require.Equal(t, map[string]string{"a": "b", claimLabel: "hash"}, shown.GetLabels())
	require.Equal(t, before, stored)
	copied := *stored
	read := &copied
	require.NoError(t, c.show(read))
	require.Equal(t, shown, read)
	require.Equal(t, before, stored)
	c.drop(shown)
	require.Equal(t, before, shown)
}

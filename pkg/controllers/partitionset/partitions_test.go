package partitionset

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/documented"
)

func shard(name string, pairs ...string) *corev1alpha1.Shard {
	s := &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := 0; i < len(pairs); i += 2 {
		s.Labels[pairs[i]] = pairs[i+1]
	}
	return s
}

func set(uid types.UID, dimensions ...string) *topologyv1alpha1.PartitionSet {
	return &topologyv1alpha1.PartitionSet{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: uid}, Spec: topologyv1alpha1.PartitionSetSpec{Dimensions: dimensions}}
}

func TestPartitions(t *testing.T) {
	shards := []*corev1alpha1.Shard{
		shard("a", "region", "eu", "cloud", "x"), shard("b", "region", "eu", "cloud", "y"), shard("c", "region", "us", "cloud", "x"),
		shard("d", "region", "eu", "cloud", "x"), shard("e", "region", "eu"),
	}
	selectors := func(s *topologyv1alpha1.PartitionSet) map[string]string {
		found, err := partitionsOf(s, shards)
		require.NoError(t, err)
		all := map[string]string{}
		for name, p := range found {
			selector, err := metav1.LabelSelectorAsSelector(p.Spec.Selector)
			require.NoError(t, err)
			all[name] = selector.String()
		}
		return all
	}
	require.Equal(t, map[string]string{"s": ""}, selectors(set("u")))
	require.Equal(t, map[string]string{"s-x-eu": "cloud=x,region=eu", "s-y-eu": "cloud=y,region=eu", "s-x-us": "cloud=x,region=us"}, selectors(set("u", "region", "cloud", "region")))
	restricted := set("u", "cloud")
	restricted.Spec.ShardSelector = &metav1.LabelSelector{
		MatchLabels: map[string]string{"region": "eu"}, MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "cloud", Operator: "NotIn", Values: []string{"y"}}},
	}
	require.Equal(t, map[string]string{"s-x": "cloud=x,cloud notin (y),region=eu"}, selectors(restricted))
	restricted.Spec.ShardSelector.MatchExpressions[0].Operator = "x"
	_, err := partitionsOf(restricted, shards)
	require.Error(t, err)
}

func TestNames(t *testing.T) {
	names := map[string]bool{}
	for _, values := range [][]string{{"a", "b"}, {"a-b"}, {"A", "b"}, {"a_b"}, {"a.b"}, {"ab"}, {""}, {"", ""}, {strings.Repeat("a", 63), strings.Repeat("b", 63)}, {strings.Repeat("a", 63), strings.Repeat("b", 62)}} {
		for _, name := range []string{"s", strings.Repeat("s", 253)} {
			got := nameOf(name, values)
			require.Empty(t, validation.IsDNS1123Subdomain(got), got)
			require.False(t, names[got], got)
			names[got] = true
		}
	}
	require.Equal(t, "s-a-b", nameOf("s", []string{"a", "b"}))
}

type world struct {
	sets   map[string]*topologyv1alpha1.PartitionSet
	have   map[string]*topologyv1alpha1.Partition
	all    []*corev1alpha1.Shard
	writes int
}

func (w *world) Create(_ context.Context, p *topologyv1alpha1.Partition, _ metav1.CreateOptions) (*topologyv1alpha1.Partition, error) {
	w.writes++
	w.have[p.Name] = p
	return p, nil
}

func (w *world) Update(ctx context.Context, p *topologyv1alpha1.Partition, _ metav1.UpdateOptions) (*topologyv1alpha1.Partition, error) {
	return w.Create(ctx, p, metav1.CreateOptions{})
}

func (w *world) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	w.writes++
	delete(w.have, name)
	return nil
}

func (w *world) converge(t *testing.T) {
	t.Helper()
	r := &partitionSetReconciler{
		set: func(key client.Key) (*topologyv1alpha1.PartitionSet, error) {
			if s := w.sets[key.Name]; s != nil {
				return s, nil
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		},
		partitions: func(logicalcluster.Name) []*topologyv1alpha1.Partition { return slices.Collect(maps.Values(w.have)) },
		shards:     func() []*corev1alpha1.Shard { return w.all },
		commit: func(_ context.Context, _, updated *topologyv1alpha1.PartitionSet) (*topologyv1alpha1.PartitionSet, error) {
			w.sets[updated.Name] = updated
			return updated, nil
		},
		in: func(logicalcluster.Name) partitions { return w },
	}
	for before := -1; before != w.writes; {
		before = w.writes
		_, err := r.reconcile(t.Context(), client.Key{Cluster: "c", Name: "s"})
		require.NoError(t, err)
	}
}

// TestAnyOrder: the final state does not depend on the order of events.
func TestAnyOrder(t *testing.T) {
	other := &topologyv1alpha1.Partition{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	for range 50 {
		w := &world{sets: map[string]*topologyv1alpha1.PartitionSet{}, have: map[string]*topologyv1alpha1.Partition{"other": other}}
		events := []func(){
			func() { w.all = append(w.all, shard("a", "region", "eu")) },
			func() { w.all = append(w.all, shard("b", "region", "us")) },
			func() { w.sets["s"] = set("new", "region") },
			func() { w.all = append(w.all, shard("c", "region", "eu")) },
		}
		w.sets["s"] = set("old", "region", "cloud")
		w.converge(t)
		rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for _, event := range events {
			event()
			if rand.IntN(2) == 0 {
				w.converge(t)
			}
		}
		w.converge(t)
		require.ElementsMatch(t, []string{"other", "s-eu", "s-us"}, slices.Collect(maps.Keys(w.have)))
		require.EqualValues(t, 2, w.sets["s"].Status.Count)
		require.True(t, conditions.IsTrue(w.sets["s"], topologyv1alpha1.PartitionsReady))
		selector, err := metav1.LabelSelectorAsSelector(w.have["s-us"].Spec.Selector)
		require.NoError(t, err)
		require.True(t, selector.Matches(labels.Set{"region": "us"}))

		// An invalid selector changes nothing, conflicting names are reported, and the partitions are deleted with the set.
		w.sets["s"].Spec.ShardSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}}
		w.converge(t)
		require.Len(t, w.have, 3)
		require.Equal(t, "InvalidSelector", conditions.Get(w.sets["s"], topologyv1alpha1.PartitionSetValid).Reason)
		w.sets["s"].Spec.ShardSelector = nil
		w.have["s-us"] = &topologyv1alpha1.Partition{ObjectMeta: metav1.ObjectMeta{Name: "s-us"}}
		w.converge(t)
		require.Equal(t, "ErrorGeneratingPartitions", conditions.Get(w.sets["s"], topologyv1alpha1.PartitionsReady).Reason)
		delete(w.sets, "s")
		w.converge(t)
		require.ElementsMatch(t, []string{"other", "s-us"}, slices.Collect(maps.Keys(w.have)))
	}
}

func TestDocumented(t *testing.T) {
	require.ElementsMatch(t, documented.Conditions(t, "PartitionSet"), documented.Reported(
		withStatus(set("s"), 0, errors.New("bad"), nil), withStatus(set("s"), 1, nil, errors.New("taken")), withStatus(set("s"), 1, nil, nil)))
}

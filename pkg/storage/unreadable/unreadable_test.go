package unreadable

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics/testutil"
)

func object(cluster logicalcluster.Name, name string, revision int64) Object {
	return Object{Key: "/pods/" + cluster.String() + "/" + name, Revision: revision, Resource: schema.GroupResource{Resource: "pods"}, Cluster: cluster, Name: name, Reason: Defaults, Message: "too large"}
}

func TestRecord(t *testing.T) {
	r := NewRecord(t.Context(), nil)
	require.True(t, r.Empty())
	r.Add(object("a", "before", 1))
	var changed []logicalcluster.Name
	stop := r.Follow(func(cluster logicalcluster.Name) { changed = append(changed, cluster) })
	require.Equal(t, []logicalcluster.Name{"a"}, changed, "a follower must receive existing records")
	r.Add(object("a", "before", 1))
	require.Len(t, changed, 1, "an unchanged record must not be reported")
	r.Add(object("a", "before", 2))
	r.Add(object("b", "one", 1))
	require.Equal(t, []logicalcluster.Name{"a", "a", "b"}, changed)
	stop()
	reads, err := testutil.GetCounterMetricValue(r.reads.WithLabelValues(Defaults))
	require.NoError(t, err)
	require.InDelta(t, 4, reads, 0, "each read must be counted, including those of recorded objects")

	require.Len(t, r.In("a", "/pods/a/"), 1)
	require.Empty(t, r.In("a", "/secrets/a/"))
	r.Remove("b", "/pods/b/one")
	require.Empty(t, r.In("b", ""))

	r.Add(object("a", "deleted", 3))
	r.Add(object("a", "written", 3))
	revisions := map[string]int64{"/pods/a/before": 2, "/pods/a/written": 4}
	still, err := r.Prune(t.Context(), "a", "", func(_ context.Context, key string) (int64, error) { return revisions[key], nil })
	require.NoError(t, err)
	require.Equal(t, []Object{object("a", "before", 2)}, still)
	require.Equal(t, still, r.In("a", ""))
	_, err = r.Prune(t.Context(), "a", "", func(context.Context, string) (int64, error) { return 0, errors.New("etcd") })
	require.Error(t, err)

	long := object("long", "one", 1)
	long.Message = "x" + strings.Repeat("ü", messageBytes)
	r.Add(long)
	require.Equal(t, "x"+strings.Repeat("ü", (messageBytes-1)/2), r.In("long", "")[0].Message, "messages must be cut between characters")

	for i := range 2 * perCluster {
		r.Add(object("many", fmt.Sprintf("%03d", i), 1))
	}
	require.Len(t, r.In("many", ""), perCluster, "the number of records must be limited")
	text := Describe(r.In("many", ""))
	require.Contains(t, text, "002: too large; and 97 more")
	require.True(t, apierrors.IsStoreReadError(NewStatus(schema.GroupResource{Resource: "pods"}, r.In("many", "")...)))
}

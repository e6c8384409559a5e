package claims

import (
	"fmt"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

var secrets = schema.GroupResource{Resource: "secrets"}

func clusters(v *Snapshot) []logicalcluster.Name {
	var found []logicalcluster.Name
	for _, m := range v.Members {
		found = append(found, m.Cluster)
	}
	return found
}

func missed(t *testing.T, s *Set, version uint64, here bool) []Change {
	t.Helper()
	changes, err := s.Missed(version, here)
	require.NoError(t, err)
	return changes
}

// TestTimeline verifies the state of a set at each version.
func TestTimeline(t *testing.T) {
	s := NewSet(nil, secrets, "", 10)
	s.Allow("a", nil, 8) // how it begins
	s.Allow("b", labels.SelectorFromSet(labels.Set{"x": "1"}), 20)
	s.Allow("b", labels.SelectorFromSet(labels.Set{"x": "1"}), 25) // no change
	s.Allow("b", labels.SelectorFromSet(labels.Set{"x": "2"}), 30)
	s.Deny("a", 40)
	s.Deny("a", 50) // no change
	require.EqualValues(t, 40, s.Version())
	require.Equal(t, 1, s.Len())

	for version, want := range map[uint64][]logicalcluster.Name{10: {"a"}, 19: {"a"}, 20: {"a", "b"}, 39: {"a", "b"}, 40: {"b"}, 99: {"b"}} {
		v, err := s.At(version)
		require.NoError(t, err)
		require.Equal(t, want, clusters(v), "at %d", version)
	}
	v, err := s.At(29)
	require.NoError(t, err)
	require.True(t, v.Selection("b").MatchesObject("", labels.Set{"x": "1"}))
	require.False(t, v.Selection("b").MatchesObject("", labels.Set{"x": "2"}))
	require.False(t, v.Selection("c").Held())
	require.False(t, v.Selection("c").MatchesObject("", nil))
	obj := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"x": "2"}}}
	require.True(t, s.Selection("b").Matches(obj))
	require.False(t, s.Selection("a").Matches(obj))

	_, err = s.At(9)
	require.ErrorIs(t, err, ErrCompacted)
	_, err = s.Missed(9, false)
	require.ErrorIs(t, err, ErrCompacted)
	for version, want := range map[uint64]int{10: 3, 20: 3, 21: 2, 40: 1, 41: 0} {
		require.Len(t, missed(t, s, version, true), want, "own changes since %d", version)
		require.Len(t, missed(t, s, version, false), 3, "changes of other replicas since %d", version)
	}
	s.Restart(7)
	require.Equal(t, []logicalcluster.Name{"b"}, clusters(s.Latest()))
	require.Empty(t, missed(t, s, 7, false))
}

// TestNames verifies selections by name.
func TestNames(t *testing.T) {
	s := NewSet(nil, secrets, "", 10)
	named := func(name string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	s.AllowNames("a", []string{"y", "x", "y"}, 20)
	s.AllowNames("a", []string{"x", "y"}, 25) // no change
	require.EqualValues(t, 20, s.Version())
	for name, held := range map[string]bool{"x": true, "y": true, "z": false, "": false} {
		require.Equal(t, held, s.Selection("a").Matches(named(name)), name)
		require.Equal(t, held, s.Selection("a").MatchesObject(name, labels.Set{"x": "1"}), name)
	}
	s.AllowNames("a", []string{"x"}, 30)
	changes := missed(t, s, 30, true)
	require.Len(t, changes, 1)
	require.True(t, changes[0].Before.Matches(named("y")))
	require.False(t, changes[0].After.Matches(named("y")))
	s.AllowNames("a", nil, 40)
	require.False(t, s.Selection("a").Held(), "an empty list of names must select no objects")
	s.Allow("a", nil, 50)
	require.True(t, s.Selection("a").Matches(named("z")))
}

// TestLag verifies that watches do not receive changes which all replicas have seen at their version.
func TestLag(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSet(nil, secrets, "", 10)
		s.Allow("a", nil, 20)
		s.Advance(25)
		<-time.After(lag)
		s.Advance(30)
		require.Len(t, missed(t, s, 100, false), 1, "changes must be kept until the lag has passed")
		<-time.After(time.Nanosecond)
		require.Len(t, missed(t, s, 100, false), 1, "changes must be kept until the set is advanced after the lag")
		s.Advance(35)
		require.Len(t, missed(t, s, 35, false), 1)
		require.Empty(t, missed(t, s, 36, false))
		s.Allow("b", nil, 40)
		require.Len(t, missed(t, s, 36, false), 1)
		require.Len(t, missed(t, s, 35, false), 2)
	})
}

// TestCompacts verifies that a set drops old changes, except those that a replica may not have seen.
func TestCompacts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSet(nil, secrets, "", 0)
		toggle := func(version uint64) {
			if version%2 == 1 {
				s.Allow("a", nil, version)
			} else {
				s.Deny("a", version)
			}
		}
		last := uint64(remembered + 100)
		for version := range last {
			toggle(version + 1)
		}
		require.Len(t, s.changes, remembered+100)
		<-time.After(lag + 1)
		toggle(last + 1)
		require.Len(t, s.changes, remembered)
		_, err := s.At(101)
		require.ErrorIs(t, err, ErrCompacted)
		_, err = s.Missed(last+1, false)
		require.ErrorIs(t, err, ErrCompacted, "changes up to this version are compacted")
		_, err = s.Missed(last+2, false)
		require.NoError(t, err)
	})
}

// TestCompactsByBytes verifies that a set drops changes if their selectors, which tenants choose, are too large.
func TestCompactsByBytes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewSet(nil, secrets, "", 0)
		var names, values []string
		for n := range 1000 {
			names = append(names, fmt.Sprintf("%0200d", n))
			values = append(values, fmt.Sprintf("%063d", n))
		}
		version := uint64(0)
		change := func(n int) {
			version++
			if n%2 == 0 {
				s.AllowNames("a", append(names, fmt.Sprint(n)), version)
				return
			}
			selector, err := labels.ValidatedSelectorFromSet(labels.Set{"n": fmt.Sprint(n)})
			require.NoError(t, err)
			in, err := labels.NewRequirement("key", selection.In, values)
			require.NoError(t, err)
			s.Allow("a", selector.Add(*in), version)
		}
		const many = 100
		for n := range many {
			change(n)
		}
		require.Len(t, s.changes, many, "changes that replicas may not have observed must be kept")
		<-time.After(lag + 1)
		change(many)
		require.LessOrEqual(t, len(s.changes)*(len(values)*63+len(names)*200)/2, rememberedBytes)
		require.Greater(t, len(s.changes), 10)
		held := 0
		for i := range s.changes {
			held += s.changes[i].After.bytes()
		}
		require.Equal(t, held, s.bytes)
		_, err := s.At(1)
		require.ErrorIs(t, err, ErrCompacted)
		s.Restart(version)
		require.Zero(t, s.bytes)
	})
}

// TestFollow verifies that the follower is notified and determines the version of changes.
func TestFollow(t *testing.T) {
	s := NewSet(nil, secrets, "", 10)
	notified := 0
	require.True(t, s.Follow(func() {
		notified++
		_ = s.Len() // takes the lock
	}))
	require.False(t, s.Follow(func() {}))
	s.Allow("a", nil, 20)
	s.Allow("b", nil, 15)
	require.Equal(t, 2, notified)
	require.Zero(t, s.Len())
	require.EqualValues(t, 20, s.Version())
	require.True(t, s.Selection("a").Held(), "the latest selection must be returned")
	made, more := s.Apply(19)
	require.Empty(t, made, "changes must be applied in order")
	require.True(t, more)
	made, more = s.Apply(30)
	require.Len(t, made, 2)
	require.False(t, more)
	require.EqualValues(t, 30, made[0].Version)
	s.Deny("a", 40)
	s.Unfollow()
	require.Equal(t, 1, s.Len())
	require.EqualValues(t, 40, s.Version())
	require.True(t, s.Follow(func() {}))
}

// TestOrder verifies that members have the order of keys, in which a slash ends a name.
func TestOrder(t *testing.T) {
	s := NewSet(nil, secrets, "", 0)
	for _, name := range []logicalcluster.Name{"b", "a", "a-b", "ab", "a:b"} {
		s.Allow(name, nil, 1)
	}
	want := []logicalcluster.Name{"a-b", "a", "a:b", "ab", "b"}
	require.Equal(t, want, clusters(s.Latest()))
	require.Equal(t, want[2:], clusters(&Snapshot{Members: s.Latest().From("a:")}))
	for _, name := range want {
		require.True(t, s.Latest().Selection(name).Held())
	}
}

// TestContext verifies that a restriction applies to one resource, and ends with another target.
func TestContext(t *testing.T) {
	s := NewSet(nil, secrets, "hash", 0)
	ctx := WithSet(request.WithWildcard(t.Context()), s)
	require.Same(t, s, From(ctx))
	require.Equal(t, "hash", request.IdentityFrom(ctx, secrets))
	require.NoError(t, request.CheckStorage(ctx, secrets))
	require.Error(t, request.CheckStorage(ctx, schema.GroupResource{Resource: "configmaps"}))
	require.Nil(t, From(t.Context()))
	require.Nil(t, From(request.WithClusterName(ctx, "other")))
	cluster, ok := request.ClusterFrom(ctx)
	require.True(t, ok)
	require.True(t, cluster.Wildcard)
}

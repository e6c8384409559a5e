package cacheserver_test

import (
	"fmt"
	"slices"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// newDeletions records the deletions of which a reader of a cache server is notified.
func newDeletions(t *testing.T, r *region) *recorder {
	t.Helper()
	d := &recorder{}
	informer := kinds.Shards.Informer(r.f.Shard("*").Wildcard(), client.InformerOptions[*corev1alpha1.Shard]{})
	informer.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnDelete: func(shard *corev1alpha1.Shard, _ bool) { d.add(shard.Name) },
	})
	start(t, "", informer.Run)
	return d
}

// TestRelayLinks checks that a region keeps its replicas while the cache server that it relays from is unreachable or
// has lost its data, and is complete again afterwards. Its readers must not receive deletions in between.
func TestRelayLinks(t *testing.T) {
	t.Parallel()
	regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	eu, us := regions["eu"], regions["us"]
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	want := []string{}
	for _, name := range []string{"one", "two", "three"} {
		create(t, shards, object(shardsGVR, "Shard", name, map[string]any{"baseURL": "https://x"}))
		want = append(want, "amber|root|"+name)
	}
	config, stopPushing := replicate(t, amber, eu.cacheServer, verifyOften, checkpointOften)
	requireReplicas(t, us.cacheServer, want)
	requireCheckpoint(t, us, eu, "amber", "eu")
	lost := newDeletions(t, us)

	t.Log("The source cache server is unreachable")
	eu.stop()
	create(t, in(t, us.f.Shard("blue"), "root", shardsGVR), object(shardsGVR, "Shard", "own", nil))
	create(t, shards, object(shardsGVR, "Shard", "meanwhile", nil))
	requireReplicas(t, us.cacheServer, append(slices.Clone(want), "blue|root|own"))
	want = append(want, "amber|root|meanwhile", "blue|root|own")
	eu.start(t)
	requireReplicas(t, us.cacheServer, want)

	t.Log("The source cache server has lost its data")
	stopPushing()
	eu.stop()
	eu.dataDir = t.TempDir()
	eu.start(t)
	// A replica of another shard shows that the relays have read the current data.
	crimson := newTestShard(t, "crimson")
	create(t, in(t, crimson.f, "root", shardsGVR), object(shardsGVR, "Shard", "other", nil))
	eu.push(t, crimson)
	want = append(want, "crimson|root|other")
	requireReplicas(t, us.cacheServer, want)
	startPush(t, config)
	create(t, shards, object(shardsGVR, "Shard", "later", nil))
	want = append(want, "amber|root|later")
	requireReplicas(t, us.cacheServer, want)
	requireCheckpoint(t, us, eu, "amber", "eu")
	require.Empty(t, lost.events())

	t.Log("Objects that are deleted on the shard are deleted in both regions")
	require.NoError(t, shards.Delete(t.Context(), "later", metav1.DeleteOptions{}))
	want = slices.DeleteFunc(want, func(name string) bool { return name == "amber|root|later" })
	requireReplicas(t, us.cacheServer, want)
	requireEqual(t, eu, us, "amber", "one")
	eventually(t, "the reader is notified", func() bool { return slices.Equal(lost.events(), []string{"later"}) })
}

// TestRelayOfRestoredShard restores a shard from an older backup. Readers behind a relay must detect that its versions
// cannot be compared, and receive the deletions.
func TestRelayOfRestoredShard(t *testing.T) {
	t.Parallel()
	regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	eu, us := regions["eu"], regions["us"]
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "kept", map[string]any{"baseURL": "https://x"}))
	config, stopPushing := replicate(t, amber, eu.cacheServer, checkpointOften)
	requireReplicas(t, us.cacheServer, []string{"amber|root|kept"})
	last := ""
	for n := range 30 {
		last = create(t, shards, object(shardsGVR, "Shard", fmt.Sprintf("lost-%d", n), nil)).GetResourceVersion()
	}
	// The checkpoint may be behind the replicas. It must cover changes that the restored shard lacks, or the restore
	// could not be detected.
	eventually(t, "the checkpoint covers all changes", func() bool {
		return checkpointAt(t, us.cacheServer, "amber").Resources[shardsResource].ResourceVersion == last
	})
	requireCheckpoint(t, us, eu, "amber", "eu")
	before := checkpointAt(t, us.cacheServer, "amber")

	stopPushing()
	amber.stop()
	amber.dataDir = t.TempDir()
	amber.start(t)
	create(t, shards, object(shardsGVR, "Shard", "kept", map[string]any{"baseURL": "https://restored"}))
	startPush(t, config)
	requireReplicas(t, us.cacheServer, []string{"amber|root|kept"})
	waitFor(t, "the checkpoint has a new epoch", func() error {
		if cp := checkpointAt(t, us.cacheServer, "amber"); cp.Epoch <= before.Epoch {
			return fmt.Errorf("got %+v, and %+v in its own region", cp, checkpointAt(t, eu.cacheServer, "amber"))
		}
		return nil
	})
	requireCheckpoint(t, us, eu, "amber", "eu")
	requireEqual(t, eu, us, "amber", "kept")
}

// TestRelayToPushed checks that a shard that starts to push to a relaying cache server takes precedence over the relay.
func TestRelayToPushed(t *testing.T) {
	t.Parallel()
	regions := runRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	eu, us := regions["eu"], regions["us"]
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "public", nil))
	create(t, shards, regional(object(shardsGVR, "Shard", "secret", nil)))
	eu.push(t, amber)
	requireReplicas(t, us.cacheServer, []string{"amber|root|public"})
	requireCheckpoint(t, us, eu, "amber", "eu")
	us.push(t, amber)
	requireReplicas(t, us.cacheServer, []string{"amber|root|public", "amber|root|secret"})
	requireCheckpoint(t, us, eu, "amber")
	mustPatch(t, shards, "public", `{"spec":{"baseURL":"https://y"}}`)
	requireEqual(t, eu, us, "amber", "public")
	requireCheckpoint(t, us, eu, "amber")
	requireReplicas(t, us.cacheServer, []string{"amber|root|public", "amber|root|secret"})
}

package cacheserver_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/cacheserver/relay"
	"github.com/shardplane/shardplane/pkg/replication/push"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/test/harness"
)

// region is a cache server with a name, which relays from others.
type region struct {
	*cacheServer
	name string
}

// relayOften are short intervals of relays.
var relayOften = relay.Timing{Look: often, Check: time.Second, Retry: often, Checkpoint: often, Digest: time.Second / 5, Alert: often}

// newRegions returns cache servers with the given relays, which are not running yet. All have the same CA.
func newRegions(t testing.TB, relays map[string][]string) map[string]*region {
	t.Helper()
	p := newPKI(t)
	all := map[string]*region{}
	for name := range relays {
		all[name] = &region{cacheServer: &cacheServer{pki: p, dataDir: t.TempDir(), port: harness.FreePort(t)}, name: name}
	}
	for name, from := range relays {
		r := all[name]
		file := ""
		if len(from) > 0 {
			var config strings.Builder
			config.WriteString("relays:\n")
			for _, other := range from {
				fmt.Fprintf(&config, "- {from: {name: %s, kubeconfig: %s}}\n", other, writeKubeconfig(t, p, fmt.Sprintf("https://127.0.0.1:%d", all[other].port)))
			}
			file = writeFile(t, "relays.yaml", config.String())
		}
		r.change = append(r.change, func(o *cacheserver.Options) {
			o.Name, o.RelayConfig, o.Relays, o.Serving.FeatureGates = name, file, relayOften, features.Gates{"CacheRelays": "true"}
		})
	}
	return all
}

func (r *region) run(t testing.TB) *region {
	t.Helper()
	r.start(t)
	r.f = factory(t, r.pki.master(t, r.url))
	return r
}

func runRegions(t testing.TB, relays map[string][]string) map[string]*region {
	t.Helper()
	all := newRegions(t, relays)
	for _, r := range all {
		r.run(t)
	}
	return all
}

// writeKubeconfig returns a file by which a reader reaches a cache server.
func writeKubeconfig(t testing.TB, p *pki, server string) string {
	t.Helper()
	cert, key := p.issue(t, "relay", "shardplane:cache:readers")
	config := clientcmdapi.NewConfig()
	config.Clusters["cache"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: p.caPEM}
	config.AuthInfos["relay"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["cache"] = &clientcmdapi.Context{Cluster: "cache", AuthInfo: "relay"}
	config.CurrentContext = "cache"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	return file
}

func writeFile(t testing.TB, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// push has a shard push to the cache server of its region.
func (r *region) push(t *testing.T, shard *testShard, change ...func(*push.Config)) push.Config {
	t.Helper()
	config, _ := replicate(t, shard, r.cacheServer, append(change, checkpointOften)...)
	return config
}

// requireCheckpoint waits until the checkpoint of a shard is complete compared with the one in its own region.
func requireCheckpoint(t *testing.T, at, home *region, shard string, via ...string) {
	t.Helper()
	waitFor(t, "the checkpoint of "+shard+" in "+at.name, func() error {
		here, there := checkpointAt(t, at.cacheServer, shard), checkpointAt(t, home.cacheServer, shard)
		equal := len(there.Resources) > 0 && here.Epoch == there.Epoch && slices.Equal(via, here.Via)
		for resource, extent := range there.Resources {
			equal = equal && here.Resources[resource].ResourceVersion == extent.ResourceVersion
		}
		if !equal {
			return fmt.Errorf("got %+v via %v, want %+v as in its own region", here.Resources, here.Via, there.Resources)
		}
		return nil
	})
}

func regional(obj *unstructured.Unstructured) *unstructured.Unstructured {
	obj.SetAnnotations(map[string]string{"cache.shardplane.io/scope": "region"})
	return obj
}

// requireEqual waits until two cache servers have the same replica of a Shard.
func requireEqual(t *testing.T, a, b *region, shard, name string) {
	t.Helper()
	waitFor(t, name, func() error {
		var have [2]*unstructured.Unstructured
		for i, r := range []*region{a, b} {
			obj, err := in(t, r.f.Shard(shard), "root", shardsGVR).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			obj.SetResourceVersion("")
			have[i] = obj
		}
		if !assert.ObjectsAreEqual(have[0], have[1]) {
			return fmt.Errorf("%s has %v, but %s has %v", a.name, have[0], b.name, have[1])
		}
		return nil
	})
}

// TestRelayStar has two regions and a cache server that relays between them: each region receives objects for the whole
// installation with their checkpoints, and nothing is relayed back to its origin.
func TestRelayStar(t *testing.T) {
	t.Parallel()
	regions := runRegions(t, map[string][]string{"eu": {"global"}, "us": {"global"}, "global": {"eu", "us"}})
	eu, us, global := regions["eu"], regions["us"], regions["global"]
	amber, blue := newTestShard(t, "amber"), newTestShard(t, "blue")
	shards := in(t, amber.f, "root", shardsGVR)
	create(t, shards, object(shardsGVR, "Shard", "early", map[string]any{"baseURL": "https://x"}))
	create(t, shards, regional(object(shardsGVR, "Shard", "secret", nil)))
	eu.push(t, amber)
	us.push(t, blue)
	create(t, shards, object(shardsGVR, "Shard", "late", map[string]any{"baseURL": "https://x"}))
	create(t, in(t, blue.f, "root", shardsGVR), object(shardsGVR, "Shard", "late", map[string]any{"baseURL": "https://blue"}))

	everywhere := []string{"amber|root|early", "amber|root|late", "blue|root|late"}
	requireReplicas(t, us.cacheServer, everywhere)
	requireReplicas(t, global.cacheServer, everywhere)
	requireReplicas(t, eu.cacheServer, append(slices.Clone(everywhere), "amber|root|secret"))
	requireEqual(t, eu, us, "amber", "early")
	requireEqual(t, us, eu, "blue", "late")
	requireCheckpoint(t, global, eu, "amber", "eu")
	requireCheckpoint(t, us, eu, "amber", "eu", "global")
	requireCheckpoint(t, eu, us, "blue", "us", "global")
	requireCheckpoint(t, eu, eu, "amber")

	t.Log("Changes, deletions and changes of the scope are relayed")
	mustPatch(t, shards, "early", `{"spec":{"baseURL":"https://y"}}`)
	require.NoError(t, shards.Delete(t.Context(), "late", metav1.DeleteOptions{}))
	mustPatch(t, shards, "secret", `{"metadata":{"annotations":{"cache.shardplane.io/scope":"installation"}}}`)
	requireReplicas(t, us.cacheServer, []string{"amber|root|early", "amber|root|secret", "blue|root|late"})
	requireEqual(t, eu, us, "amber", "early")
	mustPatch(t, shards, "secret", `{"metadata":{"annotations":{"cache.shardplane.io/scope":"region"}}}`)
	requireReplicas(t, us.cacheServer, []string{"amber|root|early", "blue|root|late"})
	requireReplicas(t, eu.cacheServer, []string{"amber|root|early", "amber|root|secret", "blue|root|late"})
	requireCheckpoint(t, us, eu, "amber", "eu", "global")

	t.Log("Replicas of a relayed shard that other clients have changed are repaired")
	require.NoError(t, in(t, us.f.Shard("amber"), "root", shardsGVR).Delete(t.Context(), "early", metav1.DeleteOptions{}))
	create(t, in(t, us.f.Shard("amber"), "root", shardsGVR), object(shardsGVR, "Shard", "invented", nil))
	requireReplicas(t, us.cacheServer, []string{"amber|root|early", "blue|root|late"})
	requireEqual(t, eu, us, "amber", "early")
}

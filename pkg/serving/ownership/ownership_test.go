package ownership_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/serving/ownership"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
	"github.com/shardplane/shardplane/test/harness"
)

func on(t *testing.T, shard string) string {
	t.Helper()
	annotations := map[string]string{}
	if shard != "" {
		annotations["core.kcp.io/shard"] = shard
	}
	raw, err := json.Marshal(corev1alpha1.LogicalCluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: "core.kcp.io/v1alpha1", Kind: "LogicalCluster"},
		ObjectMeta: metav1.ObjectMeta{Name: "cluster", Annotations: annotations},
	})
	require.NoError(t, err)
	return string(raw)
}

// providers encrypts everything with a key of that name.
func providers(t *testing.T, key string) value.ResourceTransformers {
	t.Helper()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
"resources": [{"resources": ["*.*"], "providers": [{"aesgcm": {"keys": [{"name": %q, "secret": %q}]}}]}]}`, key, "YWFhYWFhYWFhYWFhYWFhYQ=="), 0o600))
	p, err := (&encryption.Options{ConfigFile: file}).Open(t.Context(), "test")
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p.Transformers()
}

// TestClaimOlderData claims data of versions that did not write whose it is.
func TestClaimOlderData(t *testing.T) {
	url := harness.Etcd(t, transport.TLSInfo{})
	const clusters, shards = "/core.kcp.io/logicalclusters/", "/core.kcp.io/shards/"
	root, cache := etcd.Identity{Kind: etcd.KindShard, Name: "root"}, etcd.Identity{Kind: etcd.KindCacheServer}
	many := map[string]string{}
	for n := range 1200 {
		many[fmt.Sprintf("%sc%04d/cluster", clusters, n)] = on(t, "root")
	}
	secret := providers(t, "one")
	for name, c := range map[string]struct {
		data      map[string]string
		want      etcd.Identity
		encrypted bool // with secret
		with      value.ResourceTransformers
		says      []string // nil where it is claimed
	}{
		"nothing":                 {want: root},
		"nothing, cache server":   {want: cache},
		"its own":                 {data: map[string]string{clusters + "root/cluster": on(t, "root"), clusters + "x/cluster": on(t, "")}, want: root},
		"many pages":              {data: many, want: root},
		"encrypted":               {data: map[string]string{clusters + "root/cluster": on(t, "root")}, want: root, encrypted: true, with: secret},
		"encrypted, other key":    {data: map[string]string{clusters + "root/cluster": on(t, "root")}, want: root, encrypted: true, with: providers(t, "two"), says: []string{"--encryption-provider-config"}},
		"encrypted, no key":       {data: map[string]string{clusters + "root/cluster": on(t, "root")}, want: root, encrypted: true, says: []string{"--encryption-provider-config"}},
		"another shard's":         {data: map[string]string{clusters + "system:admin/cluster": on(t, "other")}, want: root, says: []string{`shard "other"`, "--name other"}},
		"of several":              {data: map[string]string{clusters + "system:admin/cluster": on(t, "root"), clusters + "b/cluster": on(t, "other")}, want: root, says: []string{`shard "other"`}},
		"a shard's, cache server": {data: map[string]string{clusters + "root/cluster": on(t, "root")}, want: cache, says: []string{`shard "root"`}},
		"a cache server's":        {data: map[string]string{shards + "root/root/root": "{}"}, want: cache},
		"a cache server's, shard": {data: map[string]string{shards + "root/root/root": "{}"}, want: root, says: []string{"the cache-server"}},
		"does not say":            {data: map[string]string{"/core/configmaps/root/default/x": "{}"}, want: root, says: []string{"/core/configmaps/root/default/x"}},
		"a prefix inside":         {data: map[string]string{"/inside/core.kcp.io/logicalclusters/root/cluster": on(t, "root")}, want: root, says: []string{"/inside/"}},
		"garbage":                 {data: map[string]string{clusters + "root/cluster": "garbage"}, want: root, says: []string{"root/cluster"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := etcd.NewOptions("", "/"+strings.NewReplacer(" ", "-", ",", "", "'", "").Replace(name))
			o.Servers = []string{url}
			require.Empty(t, o.Validate())
			h, err := o.Open(t.Context())
			require.NoError(t, err)
			defer h.Stop()
			for key, content := range c.data {
				key = h.Prefix() + key
				if c.encrypted {
					raw, err := secret.TransformerForResource(corev1alpha1.Resource("logicalclusters")).TransformToStorage(t.Context(), []byte(content), value.DefaultContext(key))
					require.NoError(t, err)
					content = string(raw)
				}
				_, err := h.Client().Put(t.Context(), key, content)
				require.NoError(t, err)
			}
			err = ownership.Claim(t.Context(), h, c.want, c.with)
			key, getErr := h.Client().KV.Get(t.Context(), etcd.IdentityKey(h.Prefix()))
			require.NoError(t, getErr)
			if c.says == nil {
				require.NoError(t, err)
				require.Len(t, key.Kvs, 1)
				return
			}
			require.ErrorIs(t, err, etcd.ErrIdentity)
			for _, part := range c.says {
				require.ErrorContains(t, err, part)
			}
			require.Empty(t, key.Kvs, "who is refused writes nothing")
		})
	}
}

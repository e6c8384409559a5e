package storage

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/request"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files in testdata")

// TestGoldenKeys runs the script testdata/keys. A command is a line, followed by the lines of its output and an empty
// line. Run the test with -rewrite to record the output.
//
//	object|list|name <key> cluster=… [shard=…] [identity=…]
func TestGoldenKeys(t *testing.T) {
	const golden = "testdata/keys"
	content, err := os.ReadFile(golden)
	require.NoError(t, err)
	var out strings.Builder
	scanner := bufio.NewScanner(strings.NewReader(string(content)))
	for scanner.Scan() {
		line := scanner.Text()
		switch {
		case strings.HasPrefix(line, "#"), line == "":
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "  "): // recorded output
		default:
			fmt.Fprintf(&out, "%s\n  %s\n", line, goldenKey(t, strings.Fields(line)))
		}
	}
	require.NoError(t, scanner.Err())
	if *rewrite {
		require.NoError(t, os.WriteFile(golden, []byte(out.String()), 0o644))
	}
	require.Equal(t, string(content), out.String())
}

func goldenKey(t *testing.T, words []string) string {
	t.Helper()
	params := map[string]string{}
	for _, word := range words[2:] {
		name, value, found := strings.Cut(word, "=")
		require.True(t, found, word)
		params[name] = value
	}
	scope := request.Scope{Cluster: request.Cluster{Name: logicalcluster.Name(params["cluster"])}}
	if params["cluster"] == "*" {
		scope.Cluster = request.Cluster{Wildcard: true}
	}
	name, sharded := params["shard"]
	scope.Shard.Name = name
	if name == "*" {
		scope.Shard = request.Shard{Wildcard: true}
	}
	ctx := request.WithScope(t.Context(), scope)
	if identity, ok := params["identity"]; ok {
		ctx = request.WithIdentity(ctx, schema.GroupResource{Resource: "configmaps"}, identity)
	}
	keys, err := newKeyspace("/core/configmaps", sharded)
	require.NoError(t, err)
	s := &tenantStorage{keys: keys, resource: schema.GroupResource{Resource: "configmaps"}, getAttrs: storage.DefaultNamespaceScopedAttr}
	if words[0] == "object" {
		_, key, err := s.one(ctx, words[1], "get")
		if err != nil {
			return "error: " + err.Error()
		}
		return key
	}
	opts := listOpts()
	opts.Recursive = words[0] == "list"
	c, err := s.collect(ctx, words[1], opts)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case c.opts.Predicate.Field.Empty():
		return fmt.Sprintf("%s recursive=%t", c.key, c.opts.Recursive)
	default:
		return fmt.Sprintf("%s recursive=%t where %s", c.key, c.opts.Recursive, c.opts.Predicate.Field)
	}
}

// FuzzKeys verifies that names cannot escape the prefix of their tenant, and that tenants do not share keys.
func FuzzKeys(f *testing.F) {
	for _, seed := range []string{"root", "system:admin", "system:../x", "system:a/b", "..", ".", "", "a/../b", "~", "*", "a\x00b", "system:"} {
		f.Add(seed, "ns", "name", "", "")
		f.Add("root", seed, "name", "", "")
		f.Add("root", "ns", seed, "", "")
		f.Add("root", "ns", "name", seed, "")
		f.Add("root", "ns", "name", "", seed)
	}
	f.Fuzz(func(t *testing.T, cluster, namespace, name, shard, identity string) {
		keys, err := newKeyspace("/core/configmaps", shard != "")
		require.NoError(t, err)
		ctx := request.WithScope(t.Context(), request.Scope{Shard: request.Shard{Name: shard}, Cluster: request.Cluster{Name: logicalcluster.Name(cluster)}})
		resource := schema.GroupResource{Resource: "configmaps"}
		if identity != "" {
			ctx = request.WithIdentity(ctx, resource, identity)
		}
		tenant, err := tenantFrom(ctx, resource, keys.sharded)
		if err != nil {
			return
		}
		prefix := keys.prefix(tenant)
		want := "/core/configmaps/"
		for _, segment := range []string{":" + identity, shard, cluster} {
			if segment != "" && segment != ":" {
				want += segment + "/"
			}
		}
		require.Equal(t, want, prefix)
		require.Equal(t, strings.TrimSuffix(prefix, "/"), path.Clean(prefix), "names must be single segments")
		require.NotContains(t, prefix, noCluster)
		key, err := keys.object(tenant, "/core/configmaps/"+namespace+"/"+name)
		if err != nil {
			return
		}
		require.True(t, strings.HasPrefix(key, prefix))
		require.True(t, strings.HasPrefix(path.Clean(key)+"/", prefix), "the key %q is outside of %q", key, prefix)
	})
}

// FuzzTokens verifies that only tokens that were sealed for a scope are accepted for it.
func FuzzTokens(f *testing.F) {
	f.Add("scope", "other", "token", "garbage")
	f.Add("a", "a\x00", "b", "b.c")
	f.Fuzz(func(t *testing.T, scope, other, token, garbage string) {
		if token == "" || strings.Contains(token, sealSeparator) {
			return // Upstream's tokens are base64.
		}
		sealed := sealToken(scope, token)
		opened, err := openToken(scope, sealed)
		require.NoError(t, err)
		require.Equal(t, token, opened)
		if garbage != "" && garbage != sealed {
			opened, err := openToken(scope, garbage)
			if err == nil {
				require.Equal(t, garbage, sealToken(scope, opened))
			} else {
				require.ErrorContains(t, err, "invalid continue token: ")
			}
		}
		if other != scope {
			_, err := openToken(other, sealed)
			require.ErrorContains(t, err, "invalid continue token: ")
		}
	})
}

func TestResourcePrefix(t *testing.T) {
	require.Equal(t, "/core/configmaps", ResourcePrefix(schema.GroupResource{Resource: "configmaps"}))
	require.Equal(t, "/tenancy.kcp.io/workspaces", ResourcePrefix(schema.GroupResource{Group: "tenancy.kcp.io", Resource: "workspaces"}))
}

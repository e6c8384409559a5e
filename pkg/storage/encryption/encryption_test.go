package encryption

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	apistorage "k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

const testTimeout = 30 * time.Second

var (
	scheme  = runtime.NewScheme()
	codecs  = serializer.NewCodecFactory(scheme)
	secrets = schema.GroupResource{Resource: "secrets"}
	others  = schema.GroupResource{Resource: "configmaps"}
)

func TestMain(m *testing.M) {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	controller.EncryptionConfigFileChangePollDuration = 10 * time.Millisecond
	goleak.VerifyTestMain(m)
}

// store is a process that stores objects with providers.
type store struct {
	t       *testing.T
	backend *storage.Backend
	client  *etcd.Server
}

func open(t *testing.T, server *etcd.Server, p *Providers) *store {
	t.Helper()
	b, err := storage.NewBackend(storage.BackendConfig{Client: server.Client(), Transformers: p.Transformers()})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	require.Eventually(t, func() bool { return b.Ready(t.Context()) == nil }, testTimeout, time.Millisecond)
	return &store{t: t, backend: b, client: server}
}

// of opens the storage of a resource, with objects of type Pod.
func (s *store) of(resource schema.GroupResource) apistorage.Interface {
	s.t.Helper()
	getter := s.backend.RESTOptionsGetter(func(schema.GroupResource) (runtime.Codec, error) {
		return apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion), nil
	})
	o, err := getter.GetRESTOptions(resource, nil)
	require.NoError(s.t, err)
	st, destroy, err := o.Decorator(o.StorageConfig, o.ResourcePrefix,
		func(obj runtime.Object) (string, error) { return apistorage.NamespaceKeyFunc(o.ResourcePrefix, obj) },
		func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} },
		func(obj runtime.Object) (labels.Set, fields.Set, error) {
			return obj.(*example.Pod).Labels, fields.Set{}, nil
		}, nil, nil)
	require.NoError(s.t, err)
	s.t.Cleanup(destroy)
	return st
}

// raw returns the keys and values in etcd.
func (s *store) raw() map[string]string {
	s.t.Helper()
	all, err := s.client.Client().KV.Get(s.t.Context(), storage.DefaultPrefix+"/", clientv3.WithPrefix())
	require.NoError(s.t, err)
	found := map[string]string{}
	for _, kv := range all.Kvs {
		found[string(kv.Key)] = string(kv.Value)
	}
	return found
}

// rawOf returns the stored value of one object.
func (s *store) rawOf(parts ...string) (key, content string) {
	s.t.Helper()
	for key, content := range s.raw() {
		if strings.HasSuffix(key, "/"+strings.Join(parts, "/")) {
			return key, content
		}
	}
	s.t.Fatalf("etcd does not contain %v: %v", parts, s.raw())
	return "", ""
}

func in(ctx context.Context, cluster string) context.Context {
	return request.WithClusterName(ctx, logicalcluster.Name(cluster))
}

func key(resource schema.GroupResource, name string) string {
	return storage.ResourcePrefix(resource) + "/ns/" + name
}

func create(t *testing.T, s apistorage.Interface, resource schema.GroupResource, cluster, name, content string) {
	t.Helper()
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"content": content}}}
	require.NoError(t, s.Create(in(t.Context(), cluster), key(resource, name), pod, &example.Pod{}, 0))
}

func read(t *testing.T, s apistorage.Interface, resource schema.GroupResource, cluster, name string) (string, error) {
	t.Helper()
	pod := &example.Pod{}
	err := s.Get(in(t.Context(), cluster), key(resource, name), apistorage.GetOptions{}, pod)
	return pod.Labels["content"], err
}

func touch(t *testing.T, s apistorage.Interface, resource schema.GroupResource, cluster, name string) {
	t.Helper()
	require.NoError(t, s.GuaranteedUpdate(in(t.Context(), cluster), key(resource, name), &example.Pod{}, false, nil,
		func(obj runtime.Object, _ apistorage.ResponseMeta) (runtime.Object, *uint64, error) {
			return obj, nil, nil
		}, nil))
}

func config(t *testing.T, file string, keys ...string) {
	t.Helper()
	var lines strings.Builder
	for _, name := range keys {
		secret := base64.StdEncoding.EncodeToString([]byte(fmt.Sprintf("%-32s", name)))
		fmt.Fprintf(&lines, "      - {name: %s, secret: %s}\n", name, secret)
	}
	require.NoError(t, os.WriteFile(file, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aesgcm:
      keys:
`+lines.String()+`  - identity: {}
`), 0o600))
}

func providers(t *testing.T, o Options) *Providers {
	t.Helper()
	p, err := o.Open(t.Context(), "test")
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func TestEncryptsByResourceAndReadsPlainObjects(t *testing.T) {
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	plain := open(t, server, providers(t, Options{})).of(secrets)
	create(t, plain, secrets, "a", "old", "open-secret")

	file := filepath.Join(t.TempDir(), "encryption.yaml")
	config(t, file, "key1")
	s := open(t, server, providers(t, Options{ConfigFile: file}))
	sealed, configMaps := s.of(secrets), s.of(others)
	create(t, sealed, secrets, "a", "new", "hidden-secret")
	create(t, sealed, secrets, "b", "new", "hidden-too")
	create(t, configMaps, others, "a", "new", "plain-content")

	_, content := s.rawOf("a", "ns", "old")
	require.Contains(t, content, "open-secret")
	fromKey, content := s.rawOf("secrets", "a", "ns", "new")
	require.True(t, strings.HasPrefix(content, "k8s:enc:aesgcm:v1:key1:"), "%q", content)
	require.NotContains(t, content, "hidden-secret")
	_, other := s.rawOf("configmaps", "a", "ns", "new")
	require.Contains(t, other, "plain-content")

	got, err := read(t, sealed, secrets, "a", "old")
	require.NoError(t, err, "the identity provider must read older objects")
	require.Equal(t, "open-secret", got)
	touch(t, sealed, secrets, "a", "old")
	_, rewritten := s.rawOf("a", "ns", "old")
	require.NotContains(t, rewritten, "open-secret", "an unchanged write must encrypt")

	// A copy in another logical cluster cannot be decrypted.
	_, err = server.Client().Put(t.Context(), strings.Replace(fromKey, "/a/", "/b/", 1), content)
	require.NoError(t, err)
	uncached := open(t, server, providers(t, Options{ConfigFile: file})).of(secrets)
	_, err = read(t, uncached, secrets, "b", "new")
	require.Error(t, err)
	got, err = read(t, uncached, secrets, "a", "new")
	require.NoError(t, err)
	require.Equal(t, "hidden-secret", got)
}

func TestRotatesKeysWithoutRestart(t *testing.T) {
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	config(t, file, "key1")
	p := providers(t, Options{ConfigFile: file})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-ended) }()
	s := open(t, server, p)
	sealed := s.of(secrets)
	create(t, sealed, secrets, "a", "first", "one")

	require.NoError(t, os.WriteFile(file, []byte("kind: Nonsense"), 0o600))
	config(t, file, "key2", "key1")
	written := 0
	require.Eventually(t, func() bool {
		written++
		name := fmt.Sprint("later-", written)
		create(t, sealed, secrets, "a", name, "two")
		_, content := s.rawOf("a", "ns", name)
		return strings.HasPrefix(content, "k8s:enc:aesgcm:v1:key2:")
	}, testTimeout, 20*time.Millisecond, "timeout waiting for the new key")
	_, content := s.rawOf("a", "ns", "first")
	require.True(t, strings.HasPrefix(content, "k8s:enc:aesgcm:v1:key1:"))
	got, err := read(t, sealed, secrets, "a", "first")
	require.NoError(t, err, "the old key must remain readable")
	require.Equal(t, "one", got)
	touch(t, sealed, secrets, "a", "first")
	_, content = s.rawOf("a", "ns", "first")
	require.True(t, strings.HasPrefix(content, "k8s:enc:aesgcm:v1:key2:"), "an unchanged write must use the new key")

	check := p.HealthChecks()[0]
	require.NoError(t, check.Check(nil))
}

// TestReplicas verifies the key rotation in docs/tasks/encrypt.md for replicas with different keys: a new key must be readable
// by all replicas before one writes with it. Otherwise the error has a hint.
func TestReplicas(t *testing.T) {
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	replica := func(keys ...string) apistorage.Interface {
		if len(keys) == 0 {
			return open(t, server, providers(t, Options{})).of(secrets)
		}
		file := filepath.Join(t.TempDir(), "encryption.yaml")
		config(t, file, keys...)
		return open(t, server, providers(t, Options{ConfigFile: file})).of(secrets)
	}
	old := replica("key1")
	for step, keys := range [][]string{{"key1", "key2"}, {"key2", "key1"}, {"key2"}} {
		next := replica(keys...)
		name := fmt.Sprint("step-", step)
		create(t, old, secrets, "a", name+"-old", name)
		create(t, next, secrets, "a", name+"-next", name)
		for _, r := range []apistorage.Interface{old, next} {
			for _, written := range []string{name + "-old", name + "-next"} {
				got, err := read(t, r, secrets, "a", written)
				require.NoError(t, err)
				require.Equal(t, name, got)
			}
		}
		for i := range step + 1 { // before a key goes, all is rewritten
			for _, written := range []string{"old", "next"} {
				touch(t, next, secrets, "a", fmt.Sprintf("step-%d-%s", i, written))
			}
		}
		old = next
	}
	for what, wrong := range map[string]apistorage.Interface{"without keys": replica(), "with another key": replica("key1")} {
		_, err := read(t, wrong, secrets, "a", "step-2-next")
		require.ErrorContains(t, err, "all replicas of a shard need the same keys", what)
		require.ErrorContains(t, err, "--encryption-provider-config", what)
	}
}

func TestRejectsInvalidOptions(t *testing.T) {
	_, err := (&Options{ConfigFile: filepath.Join(t.TempDir(), "missing")}).Open(t.Context(), "test")
	require.ErrorContains(t, err, "--encryption-provider-config")
	file := filepath.Join(t.TempDir(), "broken.yaml")
	require.NoError(t, os.WriteFile(file, []byte("resources: 3"), 0o600))
	_, err = (&Options{ConfigFile: file}).Open(t.Context(), "test")
	require.ErrorContains(t, err, file)
}

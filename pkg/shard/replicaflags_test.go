package shard_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/shard"
	"github.com/shardplane/shardplane/test/harness"
)

const encryptsSecrets = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers: [{aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}}, {identity: {}}]
`

// TestReplicasWithOtherFlags runs two replicas with different flags on one etcd, as during a roll-out, and checks the
// table in docs/tasks/replicas.md.
func TestReplicasWithOtherFlags(t *testing.T) {
	t.Parallel()
	etcd := harness.Etcd(t, transport.TLSInfo{})
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	require.NoError(t, os.WriteFile(file, []byte(encryptsSecrets), 0o600))
	one := startReplica(t, etcd, func(o *shard.Options) {
		o.BaseURL, o.Encryption.ConfigFile, o.Limits.MaxObjects = "https://one.example.org:6444", file, 20
	})
	two := startReplica(t, etcd, func(o *shard.Options) { o.BaseURL = "https://two.example.org:6444" })
	one.serves("limited")
	ws := harness.Get(t, one.workspaces(), "limited")
	harness.Create(t, one.cluster(ws.Spec.Cluster).RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "jane"}},
	})

	t.Run("limits", func(t *testing.T) {
		create := func(r *replica, name string) error {
			impersonating := *r
			impersonating.config = rest.CopyConfig(r.config)
			impersonating.config.Impersonate.UserName = "jane"
			_, err := impersonating.cluster(ws.Spec.Cluster).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			return err
		}
		two.await("jane may create", func(context.Context) error { return create(two, "first") })
		n := 0
		one.await("requests are rejected at the limit", func(context.Context) error {
			n++
			err := create(one, fmt.Sprint("one-", n))
			if err == nil {
				return fmt.Errorf("%d objects were created", n)
			}
			require.ErrorContains(t, err, "--logical-cluster-total-object-limit")
			return nil
		})
		require.NoError(t, create(two, "two"), "the replica with the higher limit must permit the object")
		require.True(t, apierrors.IsForbidden(create(one, "again")))
	})
	t.Run("encryption", func(t *testing.T) { testOneEncrypts(t, etcd, one, two) })
	t.Run("base URL", func(t *testing.T) {
		hasBaseURL := func(r *replica, want string) {
			t.Helper()
			root := r.root()
			r.await("the Shard has "+want, func(ctx context.Context) error {
				s, err := kinds.Shards.In(root).Get(ctx, shard.RootName, metav1.GetOptions{})
				if err == nil && s.Spec.BaseURL != want {
					err = fmt.Errorf("base URL %q", s.Spec.BaseURL)
				}
				return err
			})
		}
		hasBaseURL(two, "https://one.example.org:6444")
		one.stop()
		hasBaseURL(two, "https://two.example.org:6444")
	})
}

// testOneEncrypts checks that a replica without keys reports encrypted objects as unreadable, and stores objects in
// clear text that both can read.
func testOneEncrypts(t *testing.T, etcd string, one, two *replica) {
	const text = "confidential-text"
	create := func(r *replica, name string) {
		t.Helper()
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"a": text}}
		harness.Create(t, r.cluster("root").CoreV1().Secrets("default"), secret)
	}
	get := func(r *replica, name string) error {
		_, err := r.cluster("root").CoreV1().Secrets("default").Get(t.Context(), name, metav1.GetOptions{})
		return err
	}
	create(two, "plain")
	require.NoError(t, get(one, "plain"))
	create(one, "encrypted")
	require.NoError(t, get(one, "encrypted"))
	// Its cache was never full: one had encrypted some before it began.
	for path, code := range map[string]int{"secrets/encrypted": http.StatusInternalServerError, "secrets": http.StatusTooManyRequests} {
		err := two.cluster("root").CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces/default/" + path).MaxRetries(0).Do(t.Context()).Error()
		var status apierrors.APIStatus
		require.ErrorAs(t, err, &status, path)
		require.EqualValues(t, code, status.Status().Code, "%s: %v", path, err)
		require.ErrorContains(t, err, "--encryption-provider-config", path)
	}
	_, err := two.cluster("root").CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "other resources must be readable")
	require.NoError(t, two.cluster("root").RESTClient().Get().AbsPath("/readyz").Do(t.Context()).Error(), "the replica must be ready")

	direct, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, DialTimeout: harness.StartTimeout, Context: t.Context()})
	require.NoError(t, err)
	defer func() { _ = direct.Close() }()
	stored, err := direct.Get(t.Context(), "/shardplane/core/secrets/root/default/", clientv3.WithPrefix())
	require.NoError(t, err)
	inClear := map[string]bool{}
	for _, kv := range stored.Kvs {
		key := string(kv.Key)
		inClear[key[strings.LastIndexByte(key, '/')+1:]] = strings.Contains(string(kv.Value), text)
	}
	require.Equal(t, map[string]bool{"plain": true, "encrypted": false}, inClear)
}

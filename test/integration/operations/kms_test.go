package operations

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	kmsapi "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"

	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// keyService is a KMS plugin at a unix socket. It can be stopped, and its key can be replaced.
type keyService struct {
	socket string
	sealer cipher.AEAD
	keyID  atomic.Value
	server *grpc.Server
	served chan struct{}
}

func newKeyService(t *testing.T) *keyService {
	t.Helper()
	dir, err := os.MkdirTemp("", "kms") //nolint:usetesting // the path of a socket must be short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	block, err := aes.NewCipher([]byte("this key must have 32 characters"))
	require.NoError(t, err)
	sealer, err := cipher.NewGCM(block)
	require.NoError(t, err)
	k := &keyService{socket: filepath.Join(dir, "s"), sealer: sealer}
	k.keyID.Store("key-1")
	t.Cleanup(k.stop)
	return k
}

func (k *keyService) start(t *testing.T) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", k.socket)
	require.NoError(t, err)
	k.server, k.served = grpc.NewServer(), make(chan struct{})
	kmsapi.RegisterKeyManagementServiceServer(k.server, service.NewGRPCService(k.socket, time.Second, k))
	server, served := k.server, k.served
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until it is stopped
	}()
}

func (k *keyService) stop() {
	if k.server != nil {
		k.server.Stop()
		<-k.served
		k.server = nil
	}
}

// Status implements service.Service.
func (k *keyService) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.keyID.Load().(string)}, nil
}

// Encrypt implements service.Service.
func (k *keyService) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	keyID, nonce := k.keyID.Load().(string), make([]byte, k.sealer.NonceSize())
	_, _ = rand.Read(nonce)
	return &service.EncryptResponse{KeyID: keyID, Ciphertext: k.sealer.Seal(nonce, nonce, data, []byte(keyID))}, nil
}

// Decrypt implements service.Service.
func (k *keyService) Decrypt(_ context.Context, _ string, r *service.DecryptRequest) ([]byte, error) {
	if len(r.Ciphertext) < k.sealer.NonceSize() {
		return nil, errors.New("too short")
	}
	nonce, sealed := r.Ciphertext[:k.sealer.NonceSize()], r.Ciphertext[k.sealer.NonceSize():]
	return k.sealer.Open(nil, nonce, sealed, []byte(r.KeyID))
}

// TestKMS checks a shard that encrypts secrets with a KMS plugin: without the plugin at startup, with a new key, without the plugin
// later, and after a restart without it.
func TestKMS(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restarts a shard and its key service")
	}
	t.Parallel()
	k := newKeyService(t)
	file := kit.WriteFile(t, t.TempDir(), "encryption.yaml", kit.EncryptionConfig(fmt.Sprintf("[{kms: {apiVersion: v2, name: plugin, endpoint: 'unix://%s'}}, {identity: {}}]", k.socket)))
	store := harness.Etcd(t, transport.TLSInfo{})
	c := harness.Start(t, harness.Options{
		EncryptionConfig: file, Without: []string{"root", "cache-server", "front-proxy"},
		ExtraArgs: map[string][]string{"shard": {"--etcd-servers", store}},
	})
	direct, err := clientv3.New(clientv3.Config{Endpoints: []string{store}, DialTimeout: harness.StartTimeout, Context: t.Context()})
	require.NoError(t, err)
	defer func() { _ = direct.Close() }()
	shard, in := c.Component("root"), harness.Clientset(t, c.Shard(0), "root")
	s := sealed{t: t, direct: direct, secrets: in}
	readyz := func() string {
		code, body, err := kit.Send(t.Context(), c.Shard(0), kit.Request{Path: "/readyz?verbose"})
		if err != nil || code == http.StatusOK {
			return ""
		}
		return string(body)
	}

	shard.Launch()
	require.Eventually(t, func() bool {
		return strings.Contains(readyz(), "[-]kms-providers failed")
	}, kit.Timeout, 50*time.Millisecond, "readyz must fail while the plugin is not running")
	k.start(t)
	shard.WaitReady()

	s.create("first")
	require.Contains(t, s.raw("first"), "k8s:enc:kms:v2:plugin:")
	require.Contains(t, s.raw("first"), "key-1")
	k.keyID.Store("key-2")
	written := 0
	require.Eventually(t, func() bool {
		readyz() // requests the key, if it was not requested recently
		written++
		name := fmt.Sprintf("rotated-%d", written)
		s.create(name)
		return strings.Contains(s.raw(name), "key-2")
	}, kit.Timeout, 200*time.Millisecond, "the new key was not used")
	require.Contains(t, s.raw("first"), "key-1")
	require.Equal(t, content, s.read("first"))
	_, err = in.CoreV1().Secrets("default").Patch(t.Context(), "first", kit.MergePatch, []byte("{}"), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Contains(t, s.raw("first"), "key-2", "a write without changes must use the new key")

	k.stop()
	require.Equal(t, content, s.read("first"), "the shard must cache keys")
	s.create("without-plugin")

	shard.Stop()
	shard.Launch()
	require.Eventually(t, func() bool {
		return strings.Contains(readyz(), "[-]kms-providers failed")
	}, kit.Timeout, 50*time.Millisecond)
	_, err = in.CoreV1().Secrets("default").Get(t.Context(), "first", metav1.GetOptions{})
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	_, err = in.CoreV1().ConfigMaps("default").Get(t.Context(), "none", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "resources that are not encrypted must be served: %v", err)
	k.start(t)
	shard.WaitReady()
	require.Equal(t, content, s.read("first"))
	require.Equal(t, content, s.read("without-plugin"))
}

// content is the content of encrypted secrets.
const content = "secret-content"

// sealed reads secrets from a shard and from its etcd.
type sealed struct {
	t       *testing.T
	direct  *clientv3.Client
	secrets kubernetes.Interface
}

func (s *sealed) create(name string) {
	s.t.Helper()
	harness.Create(s.t, s.secrets.CoreV1().Secrets("default"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"k": content},
	})
}

func (s *sealed) read(name string) string {
	s.t.Helper()
	secret := harness.Get(s.t, s.secrets.CoreV1().Secrets("default"), name)
	return string(secret.Data["k"])
}

// raw returns the value of a secret in etcd, which must not contain clear text.
func (s *sealed) raw(name string) string {
	s.t.Helper()
	stored, err := s.direct.Get(s.t.Context(), storage.DefaultPrefix+storage.ResourcePrefix(corev1.Resource("secrets"))+"/root/default/"+name)
	require.NoError(s.t, err)
	require.Len(s.t, stored.Kvs, 1)
	require.NotContains(s.t, string(stored.Kvs[0].Value), content)
	return string(stored.Kvs[0].Value)
}

package replicas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

var configMaps = kinds.ConfigMaps.GroupVersionResource

type scripted struct {
	*clienttest.Server

	mu      sync.Mutex
	next    func() int
	written int64
	objects map[client.Key]*corev1.ConfigMap
}

func newScripted() *scripted {
	return &scripted{Server: clienttest.InProcess(kinds.Scheme), next: good, objects: map[client.Key]*corev1.ConfigMap{}}
}

func good() int        { return 0 }
func unavailable() int { return http.StatusServiceUnavailable }

func (s *scripted) respond(next func() int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = next
}

func (s *scripted) factory(t *testing.T) *client.Factory {
	t.Helper()
	config := s.ClientConfig()
	config.Transport = failing{config.Transport, s}
	factory, err := client.NewFactory(config)
	require.NoError(t, err)
	return factory
}

type failing struct {
	http.RoundTripper
	server *scripted
}

func (f failing) RoundTrip(r *http.Request) (*http.Response, error) {
	f.server.mu.Lock()
	code := f.server.next()
	f.server.mu.Unlock()
	if code == 0 {
		return f.RoundTripper.RoundTrip(r)
	}
	status := apierrors.NewGenericServerResponse(code, r.Method, schema.GroupResource{}, "", "injected failure", 2, true).Status()
	status.Kind, status.APIVersion, status.Message = "Status", "v1", "injected failure"
	body, err := json.Marshal(status)
	return &http.Response{
		StatusCode: code, ProtoMajor: 2, Request: r, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)),
	}, err
}

func scriptedKey(i int) client.Key {
	return client.Key{Cluster: logicalcluster.Name(fmt.Sprintf("c%d", i%3)), Namespace: "default", Name: fmt.Sprintf("x%02d", i)}
}

func replicaKey(shard string, i int) client.Key {
	key := scriptedKey(i)
	key.Shard = shard
	return key
}

func (s *scripted) put(t *testing.T, key client.Key, content string, edit ...func(*corev1.ConfigMap)) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, UID: types.UID(fmt.Sprintf("uid-%d", s.written)), CreationTimestamp: metav1.Unix(s.written, 0),
		Annotations: map[string]string{logicalcluster.AnnotationKey: key.Cluster.String()},
	}, Data: map[string]string{"content": content}}
	if key.Shard != "" {
		obj.Annotations[request.ShardAnnotation] = key.Shard
	}
	if old, ok := s.objects[key]; ok {
		obj.UID, obj.CreationTimestamp = old.UID, old.CreationTimestamp
	}
	for _, f := range edit {
		f(obj)
	}
	s.store(t, key, obj)
}

func (s *scripted) store(t *testing.T, key client.Key, obj *corev1.ConfigMap) {
	t.Helper()
	obj = obj.DeepCopy()
	obj.ResourceVersion = s.Put(t, configMaps, obj)
	s.objects[key] = obj
}

func (s *scripted) remove(t *testing.T, key client.Key) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delete(t, key)
}

func (s *scripted) delete(t *testing.T, key client.Key) {
	t.Helper()
	if _, ok := s.objects[key]; ok {
		s.Delete(t, configMaps, key.Shard, key.Cluster, key.Namespace, key.Name)
		delete(s.objects, key)
	}
}

func (s *scripted) become(t *testing.T, objects map[client.Key]*corev1.ConfigMap) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Break()
	for key, obj := range maps.Clone(s.objects) {
		if kept := objects[key]; kept == nil || kept.UID != obj.UID {
			s.delete(t, key)
		}
	}
	for key, obj := range objects {
		if s.objects[key] != obj {
			s.store(t, key, obj)
		}
	}
	// Another object, so that all versions are older.
	s.Put(t, kinds.Secrets.GroupVersionResource, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "restored"}})
	s.Compact()
}

func contentOf(obj *corev1.ConfigMap) string {
	return string(obj.UID) + "@" + obj.ResourceVersion + "=" + obj.Data["content"]
}

func recordingTo(t *testing.T, notified map[client.Key]string) client.Handler[*corev1.ConfigMap] {
	t.Helper()
	return client.Handler[*corev1.ConfigMap]{
		OnAdd: func(obj *corev1.ConfigMap, _ bool) {
			if _, twice := notified[client.KeyOf(obj)]; twice {
				t.Errorf("%s was added twice", client.KeyOf(obj))
			}
			notified[client.KeyOf(obj)] = contentOf(obj)
		},
		OnUpdate: func(old, obj *corev1.ConfigMap) {
			if notified[client.KeyOf(obj)] != contentOf(old) {
				t.Errorf("%s was notified as %s, but is updated from %s", client.KeyOf(obj), notified[client.KeyOf(obj)], contentOf(old))
			}
			notified[client.KeyOf(obj)] = contentOf(obj)
		},
		OnDelete: func(last *corev1.ConfigMap, _ bool) {
			if _, ok := notified[client.KeyOf(last)]; !ok {
				t.Errorf("%s was deleted, but was never added", client.KeyOf(last))
			}
			delete(notified, client.KeyOf(last))
		},
	}
}

func pass(d time.Duration) {
	<-time.After(d)
	bubble.Wait()
}

type random struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func (d *random) IntN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rand.IntN(n)
}

func randomly(r *random, n int) func() int {
	errors := []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusGone, http.StatusUnprocessableEntity}
	return func() int {
		if r.IntN(n) > 0 {
			return 0
		}
		return errors[r.IntN(len(errors))]
	}
}

package policy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

const testTimeout = 30 * time.Second

// paramServer is an in-memory server of ConfigMaps with discovery.
type paramServer struct {
	*clienttest.Server
	t      *testing.T
	params *Params
}

func (s *paramServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasSuffix(r.URL.Path, "/api/v1") {
		s.Server.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: "v1",
		APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: []string{"get", "list", "watch"}}},
	})
}

func newParamServer(t *testing.T) *paramServer {
	t.Helper()
	s := &paramServer{Server: clienttest.New(t, kinds.Scheme), t: t}
	front := httptest.NewUnstartedServer(s)
	front.EnableHTTP2 = true
	front.StartTLS()
	t.Cleanup(front.Close)
	factory, err := client.NewFactory(&rest.Config{Host: front.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	require.NoError(t, err)
	s.params = NewParams(t.Context(), factory, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.params.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		factory.CloseIdleConnections()
	})
	return s
}

func (s *paramServer) of(cluster logicalcluster.Name) *param {
	s.t.Helper()
	var found *param
	require.Eventually(s.t, func() bool {
		var err error
		found, err = s.params.get(cluster, "validating", corev1.SchemeGroupVersion.WithKind("ConfigMap"), "")
		return err == nil && found.Informer().HasSynced()
	}, testTimeout, time.Millisecond)
	return found
}

// put stores a ConfigMap of a given size with a label.
func (s *paramServer) put(cluster logicalcluster.Name, name, label string, size int) {
	s.t.Helper()
	s.Put(s.t, kinds.ConfigMaps.GroupVersionResource, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{"of": label},
			Annotations: map[string]string{logicalcluster.AnnotationKey: cluster.String()},
		},
		Data: map[string]string{"text": strings.Repeat("x", size)},
	})
}

func labelled(value string) labels.Selector { return labels.SelectorFromSet(labels.Set{"of": value}) }

// TestKeptParameters checks that few bytes of parameters are cached for a logical cluster, and that larger
// ones are read on demand.
func TestKeptParameters(t *testing.T) {
	t.Parallel()
	s := newParamServer(t)
	for _, in := range []logicalcluster.Name{"a", "b"} {
		s.put(in, "small", "few", 1)
	}
	a, b := s.of("a"), s.of("b")
	has := func(p *param) {
		t.Helper()
		obj, err := p.Lister().ByNamespace("default").Get("small")
		require.NoError(t, err)
		u, ok := obj.(*unstructured.Unstructured)
		require.True(t, ok)
		require.Equal(t, map[string]any{"text": "x"}, u.Object["data"])
		all, err := p.Lister().ByNamespace("default").List(labelled("few"))
		require.NoError(t, err)
		require.Len(t, all, 1)
	}
	kept := func(in logicalcluster.Name) int {
		s.params.mu.Lock()
		defer s.params.mu.Unlock()
		return s.params.kept[in]
	}
	has(a)
	small := kept("a")
	require.Less(t, small, 4<<10)
	s.put("a", "large", "other", maxKeptBytes/2)
	require.Eventually(t, func() bool { return kept("a") > maxKeptBytes/2 }, testTimeout, time.Millisecond)
	s.put("a", "large", "other", 1)
	require.Eventually(t, func() bool { return kept("a") < 2*small+100 }, testTimeout, time.Millisecond, "only the current size of a parameter must be counted")
	s.Delete(t, kinds.ConfigMaps.GroupVersionResource, "", "a", "default", "large")
	require.Eventually(t, func() bool { return kept("a") == small }, testTimeout, time.Millisecond, "a deleted parameter must not be counted")
	require.NotNil(t, a.informer.Load())

	s.put("a", "large", "other", maxKeptBytes/2)
	s.put("a", "larger", "other", maxKeptBytes/2)
	require.Eventually(t, func() bool { return a.informer.Load() == nil }, testTimeout, time.Millisecond, "parameters above the limit must not be cached")
	require.Zero(t, kept("a"))
	require.True(t, a.Informer().HasSynced())
	has(a)
	_, err := a.Lister().ByNamespace("default").Get("large")
	require.ErrorContains(t, err, "the parameters are larger than 2 MiB")
	require.NotNil(t, b.informer.Load(), "parameters of another logical cluster must be cached")
	has(b)

	s.params.keep("a", "validating", nil)
	s.Delete(t, kinds.ConfigMaps.GroupVersionResource, "", "a", "default", "larger")
	again := s.of("a")
	require.NotNil(t, again.informer.Load(), "parameters below the limit must be cached again")
	has(again)
}

func TestManyParameters(t *testing.T) {
	t.Parallel()
	s := newParamServer(t)
	for i := range remoteparams.MaxObjects {
		s.put("a", fmt.Sprint("p", i), "many", 1)
	}
	a := s.of("a")
	found, err := a.Lister().ByNamespace("default").List(labelled("many"))
	require.NoError(t, err)
	require.Len(t, found, remoteparams.MaxObjects)

	remaining := maxParameters
	one := counted{a, &remaining, &needs{}}
	for range maxParameters / remoteparams.MaxObjects {
		found, err = one.Lister().ByNamespace("default").List(labelled("many"))
		require.NoError(t, err)
		require.Len(t, found, remoteparams.MaxObjects)
	}
	_, err = one.Lister().ByNamespace("default").List(labelled("many"))
	require.ErrorIs(t, err, errManyParameters)
	_, err = one.Lister().ByNamespace("default").Get("p0")
	require.ErrorIs(t, err, errManyParameters)
	found, err = one.Lister().ByNamespace("default").List(labelled("nothing"))
	require.NoError(t, err)
	require.Empty(t, found)

	s.put("a", "one-more", "many", 1)
	require.Eventually(t, func() bool {
		_, err = a.Lister().ByNamespace("default").List(labelled("many"))
		return err != nil
	}, testTimeout, time.Millisecond)
	require.ErrorIs(t, err, remoteparams.ErrTooMany)
}

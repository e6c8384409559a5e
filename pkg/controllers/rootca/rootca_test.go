package rootca

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/dev/pki"
)

var errTest = errors.New("test")

func authority(t *testing.T) string {
	t.Helper()
	ca, err := pki.NewStore(t.TempDir(), time.Now).Authority("ca")
	require.NoError(t, err)
	return ca.CertFile
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(content)
}

func opened(t *testing.T) *File {
	t.Helper()
	file, err := OpenFile(authority(t))
	require.NoError(t, err)
	return file
}

type shard struct {
	mu         sync.Mutex
	namespaces []*corev1.Namespace
	configMaps map[client.Key]*corev1.ConfigMap
	// known is the state of the informer if it differs.
	known map[client.Key]*corev1.ConfigMap
	fails error
	log   []string
}

type in struct {
	*shard
	key client.Key
}

func (s *shard) configMapReconciler(ca *File) *configMapReconciler {
	return &configMapReconciler{
		ca: ca,
		namespace: func(key client.Key) (*corev1.Namespace, error) {
			for _, ns := range s.namespaces {
				if client.KeyOf(ns) == key {
					return ns, nil
				}
			}
			return nil, apierrors.NewNotFound(corev1.Resource("namespaces"), key.Name)
		},
		configMap: func(key client.Key) (*corev1.ConfigMap, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			of := s.configMaps
			if s.known != nil {
				of = s.known
			}
			m, ok := of[client.Key{Cluster: key.Cluster, Name: key.Namespace}]
			if !ok {
				return nil, notFound()
			}
			return slim(m)
		},
		at: func(key client.Key) configMapClient { return in{s, key} },
	}
}

func notFound() error { return apierrors.NewNotFound(corev1.Resource("configmaps"), ConfigMap) }

func (i in) do(what string, change func() error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.log = append(i.log, what+" "+i.key.String())
	if i.fails != nil {
		return i.fails
	}
	return change()
}

func (i in) Get(context.Context, string, metav1.GetOptions) (*corev1.ConfigMap, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if m, ok := i.configMaps[i.key]; ok {
		return m, nil
	}
	return nil, notFound()
}

func (i in) Create(_ context.Context, m *corev1.ConfigMap, _ metav1.CreateOptions) (*corev1.ConfigMap, error) {
	return m, i.do("create", func() error {
		if i.configMaps[i.key] != nil {
			return apierrors.NewAlreadyExists(corev1.Resource("configmaps"), ConfigMap)
		}
		i.configMaps[i.key] = m
		return nil
	})
}

func (i in) Update(_ context.Context, m *corev1.ConfigMap, _ metav1.UpdateOptions) (*corev1.ConfigMap, error) {
	return m, i.do("update", func() error {
		i.configMaps[i.key] = m
		return nil
	})
}

func (i in) Delete(_ context.Context, _ string, opts metav1.DeleteOptions) error {
	return i.do("delete", func() error {
		if *opts.Preconditions.UID != i.configMaps[i.key].UID {
			return apierrors.NewConflict(corev1.Resource("configmaps"), ConfigMap, errTest)
		}
		delete(i.configMaps, i.key)
		return nil
	})
}

func namespace(cluster, name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}}}
}

func TestReconcile(t *testing.T) {
	ca := opened(t)
	key := client.Key{Cluster: "one", Name: "ns"}
	with := func(change func(*corev1.ConfigMap)) *corev1.ConfigMap {
		m := desired(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "uid", Labels: map[string]string{"mine": "too"}}}, ca.Content())
		change(m)
		return m
	}
	terminating := namespace("one", "ns")
	terminating.DeletionTimestamp = new(metav1.Now())
	for name, tc := range map[string]struct {
		namespace    *corev1.Namespace
		found, known *corev1.ConfigMap
		does         string
		absent       bool
	}{
		"missing":                 {does: "create one|ns"},
		"up to date":              {found: with(func(*corev1.ConfigMap) {})},
		"other description":       {found: with(func(m *corev1.ConfigMap) { m.Annotations[descriptionAnnotation] = "mine" })},
		"another CA":              {found: with(func(m *corev1.ConfigMap) { m.Data[dataKey] = "wrong" }), does: "update one|ns"},
		"more data":               {found: with(func(m *corev1.ConfigMap) { m.Data["more"] = "x" }), does: "update one|ns"},
		"no data":                 {found: with(func(m *corev1.ConfigMap) { m.Data = nil }), does: "update one|ns"},
		"no description":          {found: with(func(m *corev1.ConfigMap) { m.Annotations = nil }), does: "update one|ns"},
		"immutable, up to date":   {found: with(func(m *corev1.ConfigMap) { m.Immutable = new(true) })},
		"immutable":               {found: with(func(m *corev1.ConfigMap) { m.Immutable, m.Data = new(true), nil }), does: "delete one|ns", absent: true},
		"up to date, stale cache": {found: with(func(*corev1.ConfigMap) {}), known: with(func(m *corev1.ConfigMap) { m.Data = nil })},
		"deleted namespace":       {namespace: namespace("two", "ns"), absent: true},
		"terminating namespace":   {namespace: terminating, absent: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shard{namespaces: []*corev1.Namespace{namespace("one", "ns")}, configMaps: map[client.Key]*corev1.ConfigMap{}}
			if tc.namespace != nil {
				s.namespaces[0] = tc.namespace
			}
			if tc.found != nil {
				s.configMaps[key] = tc.found
			}
			if tc.known != nil {
				s.known = map[client.Key]*corev1.ConfigMap{key: tc.known}
			}
			before := tc.found.DeepCopy()
			_, err := s.configMapReconciler(ca).reconcile(t.Context(), key)
			require.NoError(t, err)
			require.Equal(t, before, tc.found, "the read object must not be changed")
			require.Equal(t, tc.does, strings.Join(s.log, ", "))
			if tc.absent {
				require.Empty(t, s.configMaps)
				return
			}
			require.Equal(t, map[string]string{"ca.crt": string(ca.Content())}, s.configMaps[key].Data)
			require.NotEmpty(t, s.configMaps[key].Annotations["kubernetes.io/description"])
			require.Equal(t, tc.found != nil, s.configMaps[key].Labels["mine"] == "too", "labels of users must be retained")
		})
	}
}

// TestErrors: errors that are followed by an event are ignored.
func TestErrors(t *testing.T) {
	key := client.Key{Cluster: "one", Name: "ns"}
	ending := apierrors.NewForbidden(corev1.Resource("configmaps"), ConfigMap, errTest)
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"deleted namespace":     {err: notFound()},
		"terminating namespace": {err: ending},
		"created concurrently":  {err: apierrors.NewAlreadyExists(corev1.Resource("configmaps"), ConfigMap)},
		"no quota":              {err: apierrors.NewForbidden(corev1.Resource("configmaps"), ConfigMap, errTest), want: true},
		"other error":           {err: errTest, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shard{namespaces: []*corev1.Namespace{namespace("one", "ns")}, fails: tc.err}
			_, err := s.configMapReconciler(opened(t)).reconcile(t.Context(), key)
			require.Equal(t, tc.want, err != nil, "%v", err)
		})
	}
}

// TestSweep: missing and outdated ConfigMaps of existing namespaces are written at a limited rate.
func TestSweep(t *testing.T) {
	ca := opened(t)
	s := &shard{configMaps: map[client.Key]*corev1.ConfigMap{
		{Cluster: "one", Name: "right"}: desired(&corev1.ConfigMap{}, ca.Content()),
		{Cluster: "one", Name: "wrong"}: desired(&corev1.ConfigMap{}, []byte("former")),
	}, namespaces: []*corev1.Namespace{namespace("one", "right"), namespace("one", "wrong"), namespace("two", "missing")}}
	var turns []int
	sweeper := &sweeper{configMapReconciler: s.configMapReconciler(ca), namespaces: func() []*corev1.Namespace { return s.namespaces }, wait: func(context.Context) error {
		turns = append(turns, len(s.log))
		return nil
	}}
	require.Zero(t, sweeper.sweep(t.Context()))
	require.Equal(t, []string{"update one|wrong", "create two|missing"}, s.log)
	require.Equal(t, []int{0, 1}, turns)
	require.Zero(t, sweeper.sweep(t.Context()))
	require.Len(t, s.log, 2, "current ConfigMaps must not be written")

	s.fails = errTest
	clear(s.configMaps)
	require.Equal(t, 3, sweeper.sweep(t.Context()), "a failed write must not prevent the others")

	sweeper.wait = func(context.Context) error { return context.Canceled }
	written := len(s.log)
	sweeper.sweep(t.Context())
	require.Len(t, s.log, written, "the sweep must stop with the context")
}

func TestLimit(t *testing.T) {
	limit := newRateLimiter()
	require.InDelta(t, 100, limit.QPS(), 0)
	require.True(t, limit.TryAccept())
	require.False(t, limit.TryAccept(), "bursts must be rejected")
}

// TestFile: a new CA causes a sweep, and invalid content is ignored.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.crt")
	write := func(content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path+".new", []byte(content), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	first, second := read(t, authority(t)), read(t, authority(t))
	write(first)
	file, err := OpenFile(path)
	require.NoError(t, err)

	s := &shard{configMaps: map[client.Key]*corev1.ConfigMap{}, namespaces: []*corev1.Namespace{namespace("one", "ns")}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = file.Run(ctx) })
	stop, err := (&sweeper{configMapReconciler: s.configMapReconciler(file), namespaces: func() []*corev1.Namespace { return s.namespaces }, wait: newRateLimiter().Wait}).source(ctx, nil)
	require.NoError(t, err)
	requireContent := func(content string) {
		t.Helper()
		require.Eventually(t, func() bool {
			m, err := in{s, client.Key{Cluster: "one", Name: "ns"}}.Get(ctx, "", metav1.GetOptions{})
			return err == nil && m.Data[dataKey] == content
		}, 30*time.Second, time.Millisecond)
	}
	requireContent(first)
	write("no certificate")
	_, err = file.load()
	require.ErrorContains(t, err, "no PEM certificate")
	require.Equal(t, first, string(file.Content()))
	write(second + first)
	requireContent(second + first)
	stop()
	cancel()
	running.Wait()
}

func TestInvalidFiles(t *testing.T) {
	ca, err := pki.NewStore(t.TempDir(), time.Now).Authority("ca")
	require.NoError(t, err)
	for name, tc := range map[string]struct{ content, want string }{
		"empty":          {"", "it contains no PEM certificate"},
		"no PEM":         {"hello", "it contains no PEM certificate"},
		"with its key":   {read(t, ca.CertFile) + read(t, ca.KeyFile), "PRIVATE KEY, but must contain only certificates"},
		"no certificate": {"-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n", "an invalid certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(path, []byte(tc.content), 0o600))
			_, err := OpenFile(path)
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, path)
		})
	}
	_, err = OpenFile(filepath.Join(t.TempDir(), "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

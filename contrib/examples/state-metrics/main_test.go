package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestParse checks that errors of invalid flags contain a solution.
func TestParse(t *testing.T) {
	for args, want := range map[string]string{
		"":                                     "set --kubeconfig",
		"--kubeconfig=x extra":                 "arguments are not permitted",
		"--kubeconfig=x --by=name":             "must be uid or cluster",
		"--kubeconfig=x --series=0":            "must be at least 1",
		"--kubeconfig=x --lease-duration=soon": "invalid value",
		"--kubeconfig=/nowhere":                "--kubeconfig: ",
		"--kubeconfig=x --resources=pods":      "must have the form <resource>.<version>[.<group>]=<Kind>",
		"--kubeconfig=x --info=pods":           "--info contains pods, but --resources does not",
		"--kubeconfig=x --info= --resources=":  "--resources is empty",
		"--kubeconfig=x --info= --resources=a.v1.b=A,a.v2.b=A":    "a.b twice",
		"--kubeconfig=" + kubeconfig(t) + " --ring=A":             "Name must be valid",
		"--kubeconfig=" + kubeconfig(t) + " --listen=nowhere:-1":  "--listen: ",
		"--kubeconfig=" + kubeconfig(t) + " --lease-duration=-1s": "must be positive",
	} {
		t.Setenv("KUBECONFIG", "")
		o, err := parse(strings.Fields(args))
		if err == nil {
			err = run(t.Context(), o)
		}
		require.ErrorContains(t, err, want, args)
	}
}

// kubeconfig returns a kubeconfig of a server that does not exist.
func kubeconfig(t *testing.T) string {
	t.Helper()
	file := t.TempDir() + "/kubeconfig"
	require.NoError(t, os.WriteFile(file, []byte(`{"current-context":"c","contexts":[{"name":"c","context":{"cluster":"s"}}],"clusters":[{"name":"s","cluster":{"server":"https://127.0.0.1:1"}}]}`), 0o600))
	return file
}

// TestLimit checks that series above the limit are combined or dropped, and counted.
func TestLimit(t *testing.T) {
	e := newExporter(nil, 2)
	var all []*object
	for _, cluster := range []string{"a", "a", "b", "c", "d"} {
		o := &object{ObjectMeta: metav1.ObjectMeta{Name: "o", Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}}}
		o.Status.Phase = "Ready"
		all = append(all, o)
	}
	now := metav1.Now()
	all[4].DeletionTimestamp = &now
	kinds, err := parseKinds("things.v1.example.io=Thing", "things.example.io")
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(fixed{e, e.series(nil, kinds[0], all)})
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP shardplane_state_left_out_series Series that are not exported because of the limit --series.
# TYPE shardplane_state_left_out_series gauge
shardplane_state_left_out_series{metric="object_info",resource="things.example.io"} 2
shardplane_state_left_out_series{metric="objects",resource="things.example.io"} 2
# HELP shardplane_state_object_info 1 for each object.
# TYPE shardplane_state_object_info gauge
shardplane_state_object_info{logical_cluster="a",name="o",namespace="",path="",phase="Ready",resource="things.example.io"} 1
shardplane_state_object_info{logical_cluster="b",name="o",namespace="",path="",phase="Ready",resource="things.example.io"} 1
# HELP shardplane_state_objects Objects of a logical cluster in a phase. Each replica exports its own objects. Without a logical cluster, it is the sum of all series above the limit.
# TYPE shardplane_state_objects gauge
shardplane_state_objects{logical_cluster="",phase="Deleting",resource="things.example.io"} 1
shardplane_state_objects{logical_cluster="",phase="Ready",resource="things.example.io"} 1
shardplane_state_objects{logical_cluster="a",phase="Ready",resource="things.example.io"} 2
shardplane_state_objects{logical_cluster="b",phase="Ready",resource="things.example.io"} 1
`)))
}

// fixed always exports the same metrics.
type fixed struct {
	*exporter

	metrics []prometheus.Metric
}

func (f fixed) Collect(out chan<- prometheus.Metric) {
	for _, m := range f.metrics {
		out <- m
	}
}

// moving is a member with one half of the objects. It loads the other half.
type moving struct {
	member

	owned, all client.Ranges
	changed    []chan struct{}
}

func (m *moving) LoadedRanges() client.RangeSource      { return m.all }
func (m *moving) Ranges() (owned, coming client.Ranges) { return m.owned, client.Ranges{} }

func (m *moving) Changed() <-chan struct{} {
	first := m.changed[0]
	m.changed = m.changed[1:]
	return first
}

// TestOwned checks that objects are not exported before they are assigned, or if they have been reassigned before the end of a scrape.
func TestOwned(t *testing.T) {
	server := clienttest.New(t, kinds.Scheme)
	for n := range 20 {
		server.Put(t, kinds.Namespaces.GroupVersionResource, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "default", Annotations: map[string]string{logicalcluster.AnnotationKey: fmt.Sprint("cluster", n)},
		}})
	}
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	all, err := client.PartOf(client.ByCluster, 0, 1)
	require.NoError(t, err)
	half, err := client.PartOf(client.ByCluster, 0, 2)
	require.NoError(t, err)
	closed, open := make(chan struct{}), make(chan struct{})
	close(closed)
	m := &moving{owned: half, all: all, changed: []chan struct{}{closed, closed, open}}
	e := newExporter(m, 100)
	parsed, err := parseKinds("namespaces.v1=Namespace", "")
	require.NoError(t, err)
	e.add(parsed[0], factory.Wildcard())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.informers.Run(ctx) }()
	require.NoError(t, e.informers.WaitForSync(t.Context()))
	informer := e.sources[0].informer
	require.Equal(t, 20, informer.Lister().Len())
	want := 1 // left_out_series
	for _, o := range informer.Lister().List(nil) {
		if half.Contains(o) {
			want++
		}
	}
	require.Greater(t, want, 2)
	require.Less(t, want, 20)
	out := make(chan prometheus.Metric, 100)
	e.Collect(out)
	require.Len(t, out, want+1)
	require.Empty(t, m.changed, "the collector must retry after changes")
	cancel()
	require.NoError(t, <-ended)
}

// TestManifests checks that manifests have no unknown fields, and that the program accepts their arguments.
func TestManifests(t *testing.T) {
	content, err := os.ReadFile("manifests.yaml")
	require.NoError(t, err)
	var deployment appsv1.Deployment
	into := []any{&corev1.ServiceAccount{}, &deployment, &corev1.Service{}, &policyv1.PodDisruptionBudget{}}
	documents := strings.Split(string(content), "\n---\n")
	require.Len(t, documents, len(into))
	for i, document := range documents {
		require.NoError(t, yaml.UnmarshalStrict([]byte(document), into[i]), document)
	}
	_, err = parse(deployment.Spec.Template.Spec.Containers[0].Args)
	require.NoError(t, err)
}

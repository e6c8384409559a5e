package conformance

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

const listed = 10_000

var records = schema.GroupVersionResource{Group: "bench.example.com", Version: "v1", Resource: "records"}

// BenchmarkList lists 10,000 objects of 1 KiB: a typed resource and a custom
// resource of a shard, and the same custom resource of upstream's own server.
// cpu-ms/op is the CPU time of the process, servers and client together.
func BenchmarkList(b *testing.B) {
	cluster := startShard(b)
	here := newTenant(b, "bench", harness.In(cluster.Shard(0), "bench"))
	upstream := newTenant(b, "upstream", startUpstream(b))

	_, err := here.kube.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bench"}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(b, err)
	}
	inParallel(b, listed, func(i int) error {
		_, err := here.kube.CoreV1().ConfigMaps("bench").Create(b.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("record-%05d", i)},
			Data:       recordData(),
		}, metav1.CreateOptions{})
		return err
	})
	for _, of := range []*tenant{here, upstream} {
		createRecords(b, of)
	}
	for _, c := range []struct {
		name   string
		config *rest.Config
		path   string
	}{
		{"typed", here.config, "/api/v1/namespaces/bench/configmaps"},
		{"custom", here.config, "/apis/bench.example.com/v1/namespaces/bench/records"},
		{"upstream", upstream.config, "/apis/bench.example.com/v1/namespaces/bench/records"},
	} {
		b.Run(c.name, func(b *testing.B) { measureList(b, c.config, c.path) })
	}
}

func measureList(b *testing.B, config *rest.Config, path string) {
	b.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(b, err)
	list := func() int64 {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, config.Host+path, http.NoBody)
		require.NoError(b, err)
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Accept-Encoding", "identity")
		response, err := client.Do(r)
		require.NoError(b, err)
		defer func() { _ = response.Body.Close() }()
		require.Equal(b, http.StatusOK, response.StatusCode)
		n, err := io.Copy(io.Discard, response.Body)
		require.NoError(b, err)
		return n
	}
	size := list()
	b.ResetTimer()
	began := cpu(b)
	for range b.N {
		require.Equal(b, size, list())
	}
	b.ReportMetric(float64((cpu(b)-began).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(size)/listed, "B/object")
}

func createRecords(b *testing.B, of *tenant) {
	b.Helper()
	data := map[string]any{}
	for k, v := range recordData() {
		data[k] = v
	}
	_, err := of.crds.ApiextensionsV1().CustomResourceDefinitions().Create(b.Context(), recordCRD(), metav1.CreateOptions{})
	require.NoError(b, err)
	client := of.dyn.Resource(records).Namespace("bench")
	require.Eventually(b, func() bool {
		_, err := client.List(b.Context(), metav1.ListOptions{})
		return err == nil
	}, testTimeout, tick)
	inParallel(b, listed, func(i int) error {
		_, err := client.Create(b.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "bench.example.com/v1", "kind": "Record",
			"metadata": map[string]any{"name": fmt.Sprintf("record-%05d", i)},
			"data":     data,
		}}, metav1.CreateOptions{})
		return err
	})
}

// recordData is the same map of 20 strings for both kinds of records.
func recordData() map[string]string {
	data := map[string]string{}
	for i := range 20 {
		data[fmt.Sprintf("key-%02d", i)] = strings.Repeat("v", 20)
	}
	return data
}

func recordCRD() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "records.bench.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "bench.example.com",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "records", Singular: "record", Kind: "Record", ListKind: "RecordList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"data": {Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{
							Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"},
						}},
					},
				}},
			}},
		},
	}
}

// inParallel calls f for 0..n-1, a few at a time.
func inParallel(t testing.TB, n int, f func(i int) error) {
	t.Helper()
	numbers := make(chan int)
	errs := make(chan error, n)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range numbers {
				if err := f(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		numbers <- i
	}
	close(numbers)
	workers.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

// cpu returns the CPU time of this process.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

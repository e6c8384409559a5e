package load

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/bench/measure"
)

var (
	logicalClusters = corev1alpha1.SchemeGroupVersion.WithResource("logicalclusters")
	apiSchemas      = apisv1alpha1.SchemeGroupVersion.WithResource("apiresourceschemas")
	apiExports      = apisv1alpha2.SchemeGroupVersion.WithResource("apiexports")
	apiBindings     = apisv1alpha2.SchemeGroupVersion.WithResource("apibindings")
	// things are what is exported.
	things = schema.GroupVersionResource{Group: "bench.shardplane.io", Version: "v1", Resource: "things"}
)

// exportName is the name of the export, and of the bindings to it.
const exportName = "things"

// BindingOptions say how Bindings load a shard.
type BindingOptions struct {
	// Count is how many logical clusters bind the export.
	Count int
	// Creators create one object after the other.
	Creators int
	// Rate bounds the bindings that are created per second; 0 means none.
	Rate float64
	// Claims has the export claim ConfigMaps, and all bindings accept that.
	Claims bool
	// Run tells the logical clusters of this run from others.
	Run string
}

// Bindings are logical clusters of a shard that bind one export of another one.
type Bindings struct {
	o       BindingOptions
	shard   Target
	clients []*rest.RESTClient
	schemas int // how many the export has had
}

// NewBindings makes the logical clusters, as the workspace controller makes them but
// without Workspaces, waits until all are ready, and exports an API in the first.
func NewBindings(ctx context.Context, shard Target, o BindingOptions) (*Bindings, []measure.Result, error) {
	b := &Bindings{o: o}
	if err := b.Reconnect(shard); err != nil {
		return nil, nil, err
	}
	made, err := track(ctx, shard, logicalClusters, func(lc *unstructured.Unstructured) bool {
		phase, _, _ := unstructured.NestedString(lc.Object, "status", "phase")
		return phase == string(corev1alpha1.LogicalClusterPhaseReady)
	})
	if err != nil {
		return nil, nil, err
	}
	defer made.stop()
	p := &phase{limit: int64(o.Count + 1)}
	elapsed := run(ctx, p, b.clients, func(ctx context.Context, c *rest.RESTClient, n int) error {
		made.starting(b.cluster(n))
		return createAnnotated(ctx, c, b.cluster(n), logicalClusters, "LogicalCluster", corev1alpha1.LogicalClusterName, map[string]any{}, ownBindingsOnly)
	})
	result, err := p.result("create LogicalCluster", shard.Name, elapsed)
	if err == nil {
		err = made.wait(ctx, p.recorder.Count())
	}
	if err == nil {
		err = b.export(ctx)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("making logical clusters and an export: %w", err)
	}
	return b, []measure.Result{result, made.times.Median("LogicalCluster ready", shard.Name)}, nil
}

// Reconnect makes new connections, after a restart of the shard.
func (b *Bindings) Reconnect(shard Target) (err error) {
	b.shard = shard
	b.clients, err = shard.restClients(b.o.Creators)
	return err
}

// cluster is the name of a logical cluster: 0 is the provider's.
func (b *Bindings) cluster(n int) string { return fmt.Sprintf("bench%s%d", b.o.Run, n) }

// Quiet is the logical cluster of a tenant that has nothing to do with the rest.
func (b *Bindings) Quiet() Target { return b.shard.In(b.cluster(0)) }

// export makes a schema and has the export name it.
func (b *Bindings) export(ctx context.Context) error {
	c, provider := b.clients[0], b.cluster(0)
	b.schemas++
	if err := create(ctx, c, provider, apiSchemas, "APIResourceSchema", b.schema(), schemaSpec(b.schemas)); err != nil {
		return err
	}
	spec := map[string]any{"resources": []any{map[string]any{
		"group": things.Group, "name": things.Resource, "schema": b.schema(), "storage": map[string]any{"crd": map[string]any{}},
	}}}
	if b.o.Claims {
		spec["permissionClaims"] = []any{claim(nil)}
	}
	if b.schemas == 1 {
		return create(ctx, c, provider, apiExports, "APIExport", exportName, spec)
	}
	body, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("encoding the change of the APIExport: %w", err)
	}
	return c.Patch(types.MergePatchType).AbsPath(pathOf(provider, apiExports, exportName)).Body(body).Do(ctx).Error()
}

// schema is the name of the schema that is exported.
func (b *Bindings) schema() string { return schemaName(b.schemas) }

// schemaName is the name of one of the schemas that are exported one after the other.
func schemaName(n int) string { return fmt.Sprintf("v%d.%s", n, things.GroupResource().String()) }

// schemaSpec is a schema whose objects have one more field for each that came before.
func schemaSpec(n int) map[string]any {
	properties := map[string]any{}
	for i := range n {
		properties[fmt.Sprintf("field%d", i)] = map[string]any{"type": "string"}
	}
	return map[string]any{
		"group": things.Group, "scope": "Namespaced",
		"names": map[string]any{"plural": things.Resource, "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
		"versions": []any{map[string]any{"name": things.Version, "served": true, "storage": true, "schema": map[string]any{
			"type": "object", "properties": map[string]any{"spec": map[string]any{"type": "object", "properties": properties}},
		}}},
	}
}

// Bind makes bindings in the logical clusters from one number up to another one, which
// is at most BindingOptions.Count, and measures the creation and the time from its
// beginning until a watch says that the binding is Ready.
func (b *Bindings) Bind(ctx context.Context, first, last int) ([]measure.Result, error) {
	ready, err := track(ctx, b.shard, apiBindings, isBound)
	if err != nil {
		return nil, err
	}
	defer ready.stop()
	p := &phase{limit: int64(last - first + 1)}
	if b.o.Rate > 0 {
		p.interval = time.Duration(float64(time.Second) / b.o.Rate)
	}
	begin := time.Now()
	elapsed := run(ctx, p, b.clients, func(ctx context.Context, c *rest.RESTClient, n int) error {
		cluster := b.cluster(first + n)
		ready.starting(cluster)
		return create(ctx, c, cluster, apiBindings, "APIBinding", exportName, bindingSpec(b.cluster(0), b.o.Claims))
	})
	created, err := p.result("create APIBinding", b.shard.Name, elapsed)
	if err == nil {
		err = ready.wait(ctx, p.recorder.Count())
	}
	result := ready.times.Median("APIBinding ready", b.shard.Name)
	result.Note = fmt.Sprintf("%.1f ready per second", float64(result.Count)/time.Since(begin).Seconds())
	return []measure.Result{created, result}, err
}

// bindingSpec is that of a binding to the export of a provider, which may accept its claim.
func bindingSpec(provider string, claims bool) map[string]any {
	spec := map[string]any{"reference": map[string]any{"export": map[string]any{"path": provider, "name": exportName}}}
	if claims {
		spec["permissionClaims"] = []any{claim(map[string]any{"selector": map[string]any{"matchAll": true}, "state": "Accepted"})}
	}
	return spec
}

// isBound reports whether a binding to an export of a benchmark is Ready.
func isBound(binding *unstructured.Unstructured) bool {
	return binding.GetName() == exportName && isReady(binding) // and not one of the system
}

// isReady reports whether an object is Ready.
func isReady(object *unstructured.Unstructured) bool {
	all, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" {
			return c["status"] == "True"
		}
	}
	return false
}

// Use lists what is bound in a logical cluster, and reads its discovery.
func (b *Bindings) Use(ctx context.Context, n int) error {
	for _, path := range []string{pathOf(b.cluster(n), things, ""), "/clusters/" + b.cluster(n) + "/apis/" + things.GroupVersion().String()} {
		if err := b.clients[0].Get().AbsPath(path).Do(ctx).Error(); err != nil {
			return fmt.Errorf("using what is bound in logical cluster %s: %w", b.cluster(n), err)
		}
	}
	return nil
}

// NewSchema is the disturbance that the export names a new schema, until all bindings
// have it.
type NewSchema struct {
	// Context bounds it.
	Context  context.Context //nolint:containedctx // Disturbance knows of none
	Bindings *Bindings
	// Bound is how many bindings there are.
	Bound int
	// Follow follows them from now on until they have a schema, and returns what waits for that
	// and tells how long it took; AwaitSchema does that.
	Follow func(schema string) (wait func() (time.Duration, error), err error)
	// Started, if set, is called when the export names the schema.
	Started func()

	wait func() (time.Duration, error)
	all  measure.Recorder
}

var _ Disturbance = &NewSchema{}

// Start implements Disturbance.
func (d *NewSchema) Start() (err error) {
	if d.wait, err = d.Follow(schemaName(d.Bindings.schemas + 1)); err != nil {
		return err
	}
	if d.Started != nil {
		d.Started()
	}
	return d.Bindings.export(d.Context)
}

// Stop implements Disturbance.
func (d *NewSchema) Stop() error {
	took, err := d.wait()
	if err != nil {
		return fmt.Errorf("the new schema has not reached all: %w", err)
	}
	d.all.Add(took)
	return nil
}

// AwaitSchema waits until so many bindings of a shard have a schema, and returns after how long
// the last one had it. following is called once it follows them.
func AwaitSchema(ctx context.Context, shard Target, schema string, bound int, following func()) (time.Duration, error) {
	t, err := track(ctx, shard, apiBindings, func(binding *unstructured.Unstructured) bool {
		bound, _, _ := unstructured.NestedSlice(binding.Object, "status", "boundResources")
		if len(bound) != 1 {
			return false
		}
		name, _, _ := unstructured.NestedString(bound[0].(map[string]any), "schema", "name")
		return name == schema
	})
	if err != nil {
		return 0, err
	}
	defer t.stop()
	following()
	if err := t.wait(ctx, bound); err != nil {
		return 0, err
	}
	return t.latest(), nil
}

// Result is how long it took until all bindings had the schema.
func (d *NewSchema) Result() measure.Result {
	return d.all.Median(fmt.Sprintf("new schema at %d bindings", d.Bound), d.Bindings.shard.Name)
}

func create(ctx context.Context, c *rest.RESTClient, cluster string, resource schema.GroupVersionResource, kind, name string, spec map[string]any) error {
	return createAnnotated(ctx, c, cluster, resource, kind, name, spec, nil)
}

// ownBindingsOnly has a LogicalCluster get no bindings to the system's exports, so that those
// that are measured are all that it has.
var ownBindingsOnly = map[string]any{"internal.shardplane.io/system-bindings": "true"}

func createAnnotated(ctx context.Context, c *rest.RESTClient, cluster string, resource schema.GroupVersionResource, kind, name string, spec, annotations map[string]any) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name, "annotations": annotations}, "spec": spec,
	})
	if err != nil {
		return fmt.Errorf("encoding %s %s: %w", kind, name, err)
	}
	return c.Post().AbsPath(pathOf(cluster, resource, "")).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}

func pathOf(cluster string, resource schema.GroupVersionResource, name string) string {
	path := "/clusters/" + cluster + "/apis/" + resource.GroupVersion().String() + "/" + resource.Resource
	if name != "" {
		path += "/" + name
	}
	return path
}

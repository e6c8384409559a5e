package load

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// Scale makes exports in some logical clusters, and bindings to them in others.
type Scale struct {
	// Clusters are logical clusters of the shard. The first Exports of them have an export
	// each, of an API of its own; each of the others binds one of these, if there are any.
	Clusters []string
	Exports  int
	// Objects are how many objects of what it has bound each has.
	Objects int
	// Creators create one object after the other.
	Creators int
}

// Make makes exports, bindings and objects. progress is told what comes next.
func (s *Scale) Make(ctx context.Context, shard Target, progress func(format string, args ...any)) ([]measure.Result, error) {
	if s.Exports < 0 || s.Exports > len(s.Clusters) {
		return nil, fmt.Errorf("%d logical clusters cannot have %d exports, one each", len(s.Clusters), s.Exports)
	}
	creators, err := shard.restClients(s.Creators)
	if err != nil {
		return nil, err
	}
	consumers := s.Clusters[s.Exports:]
	bindings := len(consumers)
	if s.Exports == 0 {
		bindings = 0
	}
	var results []measure.Result
	for _, step := range []struct {
		name  string
		count int
		ready schema.GroupVersionResource
		is    func(*unstructured.Unstructured) bool
		make  func(context.Context, *rest.RESTClient, int) error
	}{
		{"APIExport", s.Exports, apiExports, hasIdentity, s.export},
		{"APIBinding", bindings, apiBindings, isBound, func(ctx context.Context, c *rest.RESTClient, n int) error {
			return create(ctx, c, consumers[n], apiBindings, "APIBinding", exportName, bindingSpec(s.Clusters[n%s.Exports], false))
		}},
		{"object", bindings * s.Objects, schema.GroupVersionResource{}, nil, func(ctx context.Context, c *rest.RESTClient, n int) error {
			at, api := n%len(consumers), thingsOf(n%len(consumers)%s.Exports)
			body := fmt.Sprintf(`{"apiVersion":%q,"kind":"Thing","metadata":{"name":"thing%d"},"spec":{"field0":"value"}}`, api.GroupVersion().String(), n/len(consumers))
			path := "/clusters/" + consumers[at] + "/apis/" + api.GroupVersion().String() + "/namespaces/default/" + api.Resource
			return c.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
		}},
	} {
		if step.count == 0 {
			continue // nobody exports, or nobody is left to bind
		}
		progress("creating %d times %s", step.count, step.name)
		made, err := makeAll(ctx, shard, creators, step.name, step.count, step.ready, step.is, step.make)
		results = append(results, made...)
		if err != nil {
			return results, fmt.Errorf("creating %ss: %w", step.name, err)
		}
	}
	return results, nil
}

// makeAll makes so many objects, and waits until all are ready, if that can be said of them.
func makeAll(ctx context.Context, shard Target, creators []*rest.RESTClient, name string, count int, resource schema.GroupVersionResource,
	is func(*unstructured.Unstructured) bool, makeOne func(context.Context, *rest.RESTClient, int) error,
) ([]measure.Result, error) {
	var ready *tracker
	if is != nil {
		var err error
		if ready, err = track(ctx, shard, resource, is); err != nil {
			return nil, err
		}
		defer ready.stop()
	}
	p := &phase{limit: int64(count)}
	elapsed := run(ctx, p, creators, makeOne)
	made, err := p.result("create "+name, shard.Name, elapsed)
	if first := p.recorder.FirstError(); first != nil {
		err = first
	}
	if err != nil || ready == nil {
		return []measure.Result{made}, err
	}
	begin := time.Now()
	err = ready.wait(ctx, count)
	made.Note = fmt.Sprintf("the last was ready %.1f s after it was created", time.Since(begin).Seconds())
	return []measure.Result{made}, err
}

func hasIdentity(export *unstructured.Unstructured) bool {
	hash, _, _ := unstructured.NestedString(export.Object, "status", "identityHash")
	return hash != ""
}

// thingsOf is the API of an export.
func thingsOf(export int) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: fmt.Sprintf("export%d.bench.shardplane.io", export), Version: things.Version, Resource: things.Resource}
}

// export makes a schema, and an export of it.
func (s *Scale) export(ctx context.Context, c *rest.RESTClient, n int) error {
	api := thingsOf(n)
	spec := schemaSpec(1)
	spec["group"] = api.Group
	name := "v1." + api.GroupResource().String()
	if err := create(ctx, c, s.Clusters[n], apiSchemas, "APIResourceSchema", name, spec); err != nil {
		return err
	}
	return create(ctx, c, s.Clusters[n], apiExports, "APIExport", exportName, map[string]any{"resources": []any{map[string]any{
		"group": api.Group, "name": api.Resource, "schema": name, "storage": map[string]any{"crd": map[string]any{}},
	}}})
}

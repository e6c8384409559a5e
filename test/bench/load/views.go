package load

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// Views are requests through the view of the export of Bindings, whose first logical
// cluster has bound it.
type Views struct {
	b *Bindings
	// Objects is how many objects the logical cluster has that are claimed.
	Objects int
	// Gets is how many GETs there are of each kind.
	Gets int
}

// NewViews has the export claim ConfigMaps, and makes them.
func NewViews(ctx context.Context, b *Bindings, objects, gets int) (*Views, error) {
	v := &Views{b: b, Objects: objects, Gets: gets}
	if err := b.patch(ctx, pathOf(b.cluster(0), apiExports, exportName), map[string]any{"permissionClaims": []any{claim(nil)}}); err != nil {
		return nil, fmt.Errorf("claiming ConfigMaps: %w", err)
	}
	thing := fmt.Sprintf(`{"apiVersion":%q,"kind":"Thing","metadata":{"name":"one"}}`, things.GroupVersion().String())
	if err := b.clients[0].Post().AbsPath("/clusters/" + b.cluster(1) + thingsPath).Body([]byte(thing)).Do(ctx).Error(); err != nil {
		return nil, fmt.Errorf("making a thing: %w", err)
	}
	p := &phase{limit: int64(objects)}
	elapsed := run(ctx, p, b.clients, func(ctx context.Context, c *rest.RESTClient, n int) error {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c%d"},"data":{"key":"value"}}`, n)
		return c.Post().AbsPath("/clusters/"+b.cluster(1)+configMapsPath).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
	})
	_, err := p.result("create ConfigMap", b.shard.Name, elapsed)
	return v, err
}

// Where the objects are, in a logical cluster or view.
var (
	configMapsPath = "/api/v1/namespaces/default/configmaps"
	thingsPath     = "/apis/" + things.GroupVersion().String() + "/namespaces/default/" + things.Resource
)

// claim is the claim for ConfigMaps, with what more is to be said of it.
func claim(more map[string]any) map[string]any {
	c := map[string]any{"group": "", "resource": "configmaps", "verbs": []any{"*"}}
	maps.Copy(c, more)
	return c
}

// patch changes the spec of an object.
func (b *Bindings) patch(ctx context.Context, path string, spec map[string]any) error {
	body, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return fmt.Errorf("encoding the change of %s: %w", path, err)
	}
	return b.clients[0].Patch(types.MergePatchType).AbsPath(path).Body(body).Do(ctx).Error()
}

// view is the path of the view in a logical cluster, or in all.
func (v *Views) view(cluster string) string {
	return "/services/apiexport/" + v.b.cluster(0) + "/" + exportName + "/clusters/" + cluster
}

// decide accepts or rejects the claim.
func (v *Views) decide(ctx context.Context, state string) error {
	return v.b.patch(ctx, pathOf(v.b.cluster(1), apiBindings, exportName), map[string]any{"permissionClaims": []any{
		claim(map[string]any{"selector": map[string]any{"matchAll": true}, "state": state}),
	}})
}

// Claim accepts the claim and rejects it, and measures until a watch through the view has
// been told of all objects, and how many writes etcd has seen.
func (v *Views) Claim(ctx context.Context) ([]measure.Result, error) {
	var accepted, rejected measure.Recorder
	before, err := v.revision(ctx)
	if err != nil {
		return nil, err
	}
	w, err := v.watch(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	events := json.NewDecoder(w)
	for _, step := range []struct {
		state string
		want  watch.EventType
		times *measure.Recorder
	}{{"Accepted", watch.Added, &accepted}, {"Rejected", watch.Deleted, &rejected}} {
		err := step.times.Time(func() error {
			if err := v.decide(ctx, step.state); err != nil {
				return err
			}
			return v.events(events, step.want)
		})
		if err != nil {
			return nil, fmt.Errorf("the claim is %s: %w", step.state, err)
		}
	}
	after, err := v.revision(ctx)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("claim over %d objects", v.Objects)
	return []measure.Result{
		accepted.Median(what+", from accepting to the last event", v.b.shard.Name),
		rejected.Median(what+", from rejecting to the last event", v.b.shard.Name),
		{Name: what + ", writes of both", Target: v.b.shard.Name, Value: float64(after - before), Unit: "revisions", Note: "of all that the shard stores"},
	}, nil
}

// revision is the newest of etcd.
func (v *Views) revision(ctx context.Context) (int64, error) {
	list := metav1.PartialObjectMetadataList{}
	data, err := v.b.clients[0].Get().AbsPath("/clusters/"+v.b.cluster(0)+configMapsPath).Param("limit", "1").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return 0, fmt.Errorf("reading the revision: %w", err)
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
}

// watch watches the claimed objects of all logical clusters.
func (v *Views) watch(ctx context.Context) (io.ReadCloser, error) {
	stream, err := v.b.clients[0].Get().AbsPath(v.view("*")+"/api/v1/configmaps").Param("watch", "true").Param("resourceVersion", "0").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching through the view: %w", err)
	}
	return stream, nil
}

// events waits for an event of each object.
func (v *Views) events(of *json.Decoder, want watch.EventType) error {
	for told := 0; told < v.Objects; {
		var event struct{ Type watch.EventType }
		if err := of.Decode(&event); err != nil {
			return fmt.Errorf("the watch has ended after %d of %d objects: %w", told, v.Objects, err)
		}
		if event.Type == want {
			told++
		}
	}
	return nil
}

// Compare measures GETs with and without the view, in turn, over one connection.
func (v *Views) Compare(ctx context.Context) ([]measure.Result, error) {
	if err := v.decide(ctx, "Accepted"); err != nil {
		return nil, fmt.Errorf("accepting the claim: %w", err)
	}
	objects := []struct{ name, path string }{
		{"own object", thingsPath + "/one"},
		{"claimed object", configMapsPath + "/c0"},
	}
	bases := []struct{ name, path string }{{"direct", "/clusters/" + v.b.cluster(1)}, {"view", v.view(v.b.cluster(1))}}
	times := make([][]measure.Recorder, len(objects))
	for i := range times {
		times[i] = make([]measure.Recorder, len(bases))
	}
	c := v.b.clients[0]
	if err := v.waitFor(ctx, bases[1].path+objects[1].path); err != nil {
		return nil, err
	}
	for n := range v.Gets {
		for i, object := range objects {
			order := []int{0, 1}
			if n%2 == 1 {
				slices.Reverse(order)
			}
			for _, j := range order {
				if err := times[i][j].Time(func() error { return c.Get().AbsPath(bases[j].path + object.path).Do(ctx).Error() }); err != nil {
					return nil, fmt.Errorf("reading through %s: %w", bases[j].name, err)
				}
			}
		}
	}
	var results []measure.Result
	for i, object := range objects {
		for j, base := range bases {
			results = append(results, times[i][j].Median("GET of "+object.name, base.name))
		}
	}
	return results, nil
}

// waitFor waits until the claim has effect.
func (v *Views) waitFor(ctx context.Context, path string) error {
	for {
		err := v.b.clients[0].Get().AbsPath(path).Do(ctx).Error()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the claim has no effect: %w", err)
		case <-time.After(time.Millisecond):
		}
	}
}

package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	return v, b.makeConfigMaps(ctx, b.cluster(1), "c", objects)
}

// Where the objects are, in a logical cluster or view.
var (
	configMapsPath = "/api/v1/namespaces/default/configmaps"
	allConfigMaps  = "/api/v1/configmaps"
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
func (v *Views) view(cluster string) string { return viewOf(v.b.cluster(0), cluster) }

func viewOf(provider, cluster string) string {
	return "/services/apiexport/" + provider + "/" + exportName + "/clusters/" + cluster
}

// decide accepts or rejects the claim.
func (v *Views) decide(ctx context.Context, state string) error {
	return v.b.patch(ctx, pathOf(v.b.cluster(1), apiBindings, exportName), map[string]any{"permissionClaims": []any{
		claim(map[string]any{"selector": map[string]any{"matchAll": true}, "state": state}),
	}})
}

// Claims accepts the claim and rejects it, again and again. Of each it measures, from the
// answer to the write of the binding on, until a GET through the view says so, and until a
// watch through it has been told of the first object and of the last; and how many writes
// etcd has seen of both.
func (v *Views) Claims(ctx context.Context, repeat int) ([]measure.Result, error) {
	before, err := v.revision(ctx)
	if err != nil {
		return nil, err
	}
	w, err := openStream(ctx, v.b.clients[0], v.view("*")+allConfigMaps, "0")
	if err != nil {
		return nil, err
	}
	defer w.close()
	steps := []*claimStep{
		{state: "Accepted", name: "accepting", want: watch.Added, seen: v.Objects},
		{state: "Rejected", name: "rejecting", want: watch.Deleted},
	}
	for range repeat {
		for _, step := range steps {
			if err := v.claim(ctx, w, step); err != nil {
				return nil, fmt.Errorf("the claim is %s: %w", step.state, err)
			}
		}
	}
	after, err := v.revision(ctx)
	if err != nil {
		return nil, err
	}
	var results []measure.Result
	what := fmt.Sprintf("claim over %d objects", v.Objects)
	for _, step := range steps {
		results = append(results,
			step.write.Median(what+", "+step.name+": the write", v.b.shard.Name),
			step.visible.Median(what+", "+step.name+": from the answer until a GET of the last says so", v.b.shard.Name),
			step.first.Median(what+", "+step.name+": from the answer to the first event", v.b.shard.Name),
			step.last.Median(what+", "+step.name+": from the answer to the last event", v.b.shard.Name),
		)
	}
	return append(results, measure.Result{
		Name: what + ", writes of both", Target: v.b.shard.Name,
		Value: float64(after-before) / float64(repeat), Unit: "revisions", Note: "of all that the shard stores",
	}), nil
}

// claimStep is what is done to the claim, after which a list through the view has so many
// objects as are seen, and how long it takes.
type claimStep struct {
	state, name                 string
	want                        watch.EventType
	seen                        int
	write, visible, first, last measure.Recorder
}

// claim takes one step.
func (v *Views) claim(ctx context.Context, w *stream, step *claimStep) error {
	if err := step.write.Time(func() error { return v.decide(ctx, step.state) }); err != nil {
		return err
	}
	begin := time.Now()
	told := make(chan error, 1)
	go func() {
		first := true
		err := w.take(v.Objects, func(line []byte) bool {
			ours := kindOf(line) == step.want
			if ours && first {
				first = false
				step.first.Add(time.Since(begin))
			}
			return ours
		})
		step.last.Add(time.Since(begin))
		told <- err
	}()
	err := waitFor(ctx, v.b.clients[1], v.view(v.b.cluster(1))+fmt.Sprintf("%s/c%d", configMapsPath, v.Objects-1), step.seen > 0)
	step.visible.Add(time.Since(begin))
	if err = errors.Join(err, <-told); err != nil {
		return err
	}
	n, err := v.count(ctx)
	if err == nil && n != step.seen {
		err = fmt.Errorf("a list through the view has %d objects and not %d", n, step.seen)
	}
	return err
}

// count returns how many of the claimed objects a list of the whole view has.
func (v *Views) count(ctx context.Context) (int, error) {
	var list metav1.PartialObjectMetadataList
	data, err := v.b.clients[0].Get().AbsPath(v.view("*")+allConfigMaps).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return 0, fmt.Errorf("listing through the view: %w", err)
	}
	n := 0
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, "c") {
			n++
		}
	}
	return n, nil
}

// revision is the newest of etcd.
func (v *Views) revision(ctx context.Context) (int64, error) {
	version, err := versionOf(ctx, v.b.clients[0], "/clusters/"+v.b.cluster(0)+configMapsPath)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(version, 10, 64)
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
	if err := waitFor(ctx, v.b.clients[1], bases[1].path+objects[1].path, true); err != nil {
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

// waitFor waits until an object is there, or may not be seen.
func waitFor(ctx context.Context, c *rest.RESTClient, path string, there bool) error {
	for {
		err := c.Get().RequestURI(path).Do(ctx).Error()
		if err == nil && there || !there && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the claim has no effect: %w", errors.Join(ctx.Err(), err))
		case <-time.After(time.Millisecond):
		}
	}
}

package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/test/robustness/history"
)

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	churnGroup      = "churn.example.com"
	// variants is the number of schemas of a definition.
	variants = 3
)

// definer is the only client that writes one definition of a logical cluster. It creates, updates
// and deletes the definition, sends invalid requests, and creates objects for watchers.
type definer struct {
	writer

	// plural is the name of the definition, and kinds are its possible kinds. Another definition of
	// the logical cluster may claim the last kind.
	plural string
	kinds  []string
	// singleReplica is true if one process serves the definition. The expected schema is then
	// unambiguous.
	singleReplica bool
	// starting receives a value before a definition is created, if a receiver is waiting.
	starting chan struct{}

	kind, variant string
	// made are the objects of the definition. removing is when its deletion was first requested.
	made     []history.Object
	removing int64
}

func (d *definer) cluster() string { return d.target.clusters[0] }

func (d *definer) name() string { return d.plural + "." + churnGroup }

func (d *definer) path(collection string) string {
	return "/clusters/" + d.cluster() + collection
}

func (d *definer) step(ctx context.Context) {
	found, crd := d.get(ctx)
	if found.Outcome == history.NotFound {
		d.sendInvalid(ctx)
		select {
		case d.starting <- struct{}{}:
		default:
		}
		d.chooseSpec()
		d.write(ctx, history.Create, d.definition())
		return
	}
	if found.Outcome != history.OK || found.Terminating {
		return
	}
	d.createObject(ctx)
	switch random := d.rng.IntN(10); {
	case random < 3:
		kind := d.kind
		d.chooseSpec()
		if found.Established && random > 0 {
			d.kind = kind // the kind of an established definition is immutable
		}
		d.update(ctx, crd)
		d.createObject(ctx)
	case random < 5:
		d.remove(ctx, crd)
	}
}

// chooseSpec selects a random kind and variant.
func (d *definer) chooseSpec() {
	d.kind, d.variant = d.kinds[d.rng.IntN(len(d.kinds))], strconv.Itoa(d.rng.IntN(variants))
}

// variantIndex returns the variant of a definition, which is below variants.
func variantIndex(crd *apiextensionsv1.CustomResourceDefinition) int {
	var variant string
	_ = json.Unmarshal(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["variant"].Default.Raw, &variant)
	n, _ := strconv.Atoi(variant)
	return n
}

// definition returns the definition with the selected kind and variant. A default in its schema
// identifies the variant.
func (d *definer) definition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: d.name()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: churnGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: d.plural, Kind: d.kind},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"variant": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(strconv.Quote(d.variant))}},
					},
				}},
			}},
		},
	}
}

// sendInvalid sends a request without effect, after which the names of the definition must be free.
func (d *definer) sendInvalid(ctx context.Context) {
	d.chooseSpec()
	bad := d.definition()
	path := definitionsPath
	switch d.rng.IntN(4) {
	case 0:
		bad.Name = d.plural + ".chrun.example.com"
	case 1:
		bad.Spec.Versions[0].Schema.OpenAPIV3Schema.Type = "nonsense"
	case 2:
		bad.Spec.Versions[0].Storage = false
	case 3:
		path += "?dryRun=All"
	}
	code, response, err := d.conn.do(ctx, http.MethodPost, d.path(path), bad)
	if err != nil || unavailable(code) {
		return
	}
	want := http.StatusUnprocessableEntity
	if path != definitionsPath {
		want = http.StatusCreated
	}
	if code != want {
		record(d.rec, &d.rec.history.Probes, history.Probe{Name: fmt.Sprintf("invalid definition, or dry run of a valid one: %s", response), Code: code, Want: want})
	}
}

// request sends a request for the definition, and records the response.
func (d *definer) request(ctx context.Context, kind history.Kind, method, path string, body any) (*history.Definition, *apiextensionsv1.CustomResourceDefinition) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*opTimeout)
	defer cancel()
	r := &history.Definition{ID: d.rec.id(), Server: d.target.domain.Server, Cluster: d.cluster(), Name: d.name(), Kind: kind, Names: []string{d.plural, d.kind}, Start: d.rec.now()}
	if d.singleReplica {
		r.Variant = d.variant
	}
	code, response, err := d.conn.do(ctx, method, d.path(path), body)
	r.End = d.rec.now()
	r.Outcome = history.Unknown
	crd := &apiextensionsv1.CustomResourceDefinition{}
	switch {
	case err != nil:
	case code == http.StatusNotFound && kind != history.Create && concerns(response, d.name()):
		r.Outcome = history.NotFound
	case code == http.StatusUnprocessableEntity:
		r.Outcome = history.Refused
	case code == http.StatusConflict:
		r.Outcome = history.Conflict
	case code < http.StatusMultipleChoices && json.Unmarshal(response, crd) == nil:
		r.Outcome = history.OK
		r.Established = apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
		r.Accepted = apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted)
		r.Terminating = crd.DeletionTimestamp != nil
		if kind != history.Delete {
			d.kind = crd.Spec.Names.Kind
			r.Names[1] = d.kind
			if d.singleReplica {
				r.Variant = strconv.Itoa(variantIndex(crd))
			}
		}
	}
	record(d.rec, &d.rec.history.Definitions, r)
	return r, crd
}

func (d *definer) get(ctx context.Context) (*history.Definition, *apiextensionsv1.CustomResourceDefinition) {
	r, crd := d.request(ctx, history.Get, http.MethodGet, definitionsPath+"/"+d.name(), nil)
	if r.Outcome == history.NotFound {
		d.recordPurge(r.End)
	}
	return r, crd
}

func (d *definer) write(ctx context.Context, kind history.Kind, crd *apiextensionsv1.CustomResourceDefinition) *history.Definition {
	method, path := http.MethodPut, definitionsPath+"/"+d.name()
	if kind == history.Create {
		method, path = http.MethodPost, definitionsPath
	}
	r, _ := d.request(ctx, kind, method, path, crd)
	return r
}

// update writes the selected spec. If a request has no response, it may take effect later. It is
// therefore repeated with another schema until a response shows that all earlier requests have
// failed.
func (d *definer) update(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	for {
		updated := d.definition()
		updated.ResourceVersion = crd.ResourceVersion
		r := d.write(ctx, history.Update, updated)
		if r.Outcome != history.OK {
			d.kind = crd.Spec.Names.Kind // not changed
		}
		if r.Outcome != history.Unknown {
			return
		}
		for deadline := time.Now().Add(testTimeout); r.Outcome == history.Unknown; pace(context.WithoutCancel(ctx), 20*time.Millisecond) {
			if time.Now().After(deadline) {
				return
			}
			r, crd = d.get(ctx)
		}
		if r.Outcome != history.OK || r.Terminating {
			return
		}
		d.variant = strconv.Itoa((variantIndex(crd) + 1) % variants)
	}
}

// remove deletes the definition and waits until it and its objects are removed, or the timeout
// expires. A request without a response may still take effect when a paused process resumes. It is
// therefore repeated until the definition is removed. Its UID precondition protects later
// definitions.
func (d *definer) remove(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	if d.removing == 0 {
		d.removing = d.rec.now()
	}
	this := metav1.NewUIDPreconditions(string(crd.UID))
	for again := true; again; pace(context.WithoutCancel(ctx), 20*time.Millisecond) {
		d.request(ctx, history.Delete, http.MethodDelete, definitionsPath+"/"+d.name(), &metav1.DeleteOptions{Preconditions: this})
		deadline := time.Now().Add(testTimeout)
		for again = false; !again; pace(context.WithoutCancel(ctx), 20*time.Millisecond) {
			r, _ := d.get(ctx)
			if r.Outcome == history.NotFound {
				return
			}
			again = r.Outcome == history.OK && !r.Terminating
			if time.Now().After(deadline) {
				return
			}
		}
	}
}

// recordPurge records that the objects of the definition were deleted with it.
func (d *definer) recordPurge(end int64) {
	for _, o := range d.made {
		d.rec.op(&history.Op{ID: d.rec.id(), Client: d.id, Domain: d.target.domain, Key: o.Key, Kind: history.Delete, Expected: o.State, Start: d.removing, End: end, Outcome: history.OK})
	}
	d.made, d.removing = nil, 0
}

// createObject creates an object.
func (d *definer) createObject(ctx context.Context) {
	key := history.Key{Cluster: d.cluster(), Namespace: d.target.namespace, Name: fmt.Sprintf("made-%d-%d", d.id, d.n)}
	if code, outcome := d.tryCreate(ctx, key); outcome == history.Unknown && !notServed(code) {
		d.resolve(ctx, key)
	}
}

// notServed reports whether an object was not created because the resource is not served, or has another
// kind.
func notServed(code int) bool {
	return code == http.StatusNotFound || code == http.StatusUnprocessableEntity
}

// tryCreate sends one request to create an object.
func (d *definer) tryCreate(ctx context.Context, key history.Key) (int, history.Outcome) {
	u := d.beginUse()
	op := d.begin(history.Create, key, history.State{})
	body := d.body(op)
	body.Kind = d.kind
	code, response := d.finishAs(ctx, op, http.MethodPost, d.target.collection(d.target.one(d.cluster())), body)
	switch {
	case op.Outcome == history.OK:
		d.made = append(d.made, history.Object{Key: key, State: op.Result})
		var o struct{ Variant string }
		if d.singleReplica && json.Unmarshal(response, &o) == nil {
			u.Variant = o.Variant
		}
		d.endUse(u, code)
	case code == http.StatusNotFound:
		d.endUse(u, code)
	}
	return code, op.Outcome
}

func (d *definer) beginUse() *history.Use {
	return &history.Use{ID: d.rec.id(), Server: d.target.domain.Server, Cluster: d.cluster(), Definition: d.name(), Start: d.rec.now()}
}

func (d *definer) endUse(u *history.Use, code int) {
	u.Code, u.End = code, d.rec.now()
	record(d.rec, &d.rec.history.Uses, u)
}

// resolve determines the outcome of a request without a response to create an object, because its deletion
// must be recorded. The request may take effect after a read that finds no object. It is therefore
// repeated until the object exists, so that earlier requests cannot take effect any more.
func (d *definer) resolve(ctx context.Context, key history.Key) {
	deadline := time.Now().Add(testTimeout)
	for time.Now().Before(deadline) {
		u := d.beginUse()
		op := d.begin(history.Get, key, history.State{})
		code, _ := d.finishAs(ctx, op, http.MethodGet, d.target.object(key), nil)
		switch {
		case op.Outcome == history.OK:
			d.made = append(d.made, history.Object{Key: key, State: op.Result})
			return
		case op.Outcome == history.NotFound:
			if code, outcome := d.tryCreate(ctx, key); outcome == history.OK || notServed(code) {
				return
			}
		case code == http.StatusNotFound:
			d.endUse(u, code)
			return
		}
		pace(context.WithoutCancel(ctx), 50*time.Millisecond)
	}
}

// removed deletes the definition if it exists, and reports whether it is removed.
func (d *definer) removed(ctx context.Context) bool {
	r, crd := d.get(ctx)
	if r.Outcome == history.OK && !r.Terminating {
		d.remove(ctx, crd)
		r, _ = d.get(ctx)
	}
	return r.Outcome == history.NotFound
}

// established creates the definition if it does not exist, and reports whether it is established.
func (d *definer) established(ctx context.Context) bool {
	r, _ := d.get(ctx)
	if r.Outcome == history.NotFound {
		d.write(ctx, history.Create, d.definition())
	}
	return r.Outcome == history.OK && r.Established
}

// checkNamesFree deletes all definitions, and checks that each name can be used afterwards.
func checkNamesFree(t *testing.T, definers []*definer) {
	t.Helper()
	eventually := func(d *definer, what string, is func(context.Context) bool) {
		require.Eventually(t, func() bool { return is(t.Context()) }, testTimeout, 50*time.Millisecond, "%s in %s with kind %s is not %s", d.name(), d.cluster(), d.kind, what)
	}
	for _, d := range definers {
		eventually(d, "removed", d.removed)
	}
	for _, d := range definers {
		for _, d.kind = range d.kinds {
			eventually(d, "established", d.established)
			eventually(d, "removed", d.removed)
		}
	}
}

// define starts the definers of a shard, and watchers of their objects.
func (r *run) define(writing, ctx context.Context, writers, watchers *sync.WaitGroup, on *target) []*definer {
	var all []*definer
	for n, plural := range []string{"things", "gadgets"} {
		t := *on
		t.group, t.apiVersion, t.namespace, t.kind = "/apis/"+churnGroup+"/v1", churnGroup+"/v1", "default", "Thing"
		t.domain.Resource, t.clusters, t.shortWatchesOnly, t.upserts = plural, on.clusters[:1], false, false
		d := &definer{writer: *r.newWriter(&t, false), plural: plural, kinds: []string{[]string{"Thing", "Gadget"}[n], "Both"}, singleReplica: r.replicas == nil, starting: r.defining}
		all = append(all, d)
		writers.Go(func() { repeat(writing, d.rng, d.pause, d.step) })
		w := r.newWatcher(&t, "of a definition", t.direct, t.one(t.clusters[0]), n == 1)
		watchers.Go(func() { w.run(ctx) })
	}
	return all
}

// killDefining kills a shard while a definition is created there.
func (r *run) killDefining(name string) fault {
	return fault{name: "kill " + name + " while a definition is created", do: func(rng *rand.Rand) {
		select {
		case <-r.defining:
		case <-time.After(testTimeout):
			r.t.Errorf("no definition was created within %s", testTimeout)
		}
		pace(r.t.Context(), upTo(rng, 30*time.Millisecond))
		kill(r, r.cluster.Component(name), rng)
	}}
}

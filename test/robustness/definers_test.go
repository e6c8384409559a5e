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
	// variants is how many schemas a definition may have.
	variants = 3
)

// definer is the only client that writes one definition of a logical cluster: it
// makes, changes and deletes it, sends requests that are refused, and makes
// objects meanwhile, which others watch.
type definer struct {
	writer

	// plural names the definition, and kinds are those that it may claim: another
	// definition of the logical cluster may claim the last.
	plural string
	kinds  []string
	// one says that one process serves: which schema it has is then certain.
	one bool
	// begun is sent to when a definition is about to be made, if anybody listens.
	begun chan struct{}

	kind, variant string
	// made are the objects of the definition, and removing is when the first request
	// to delete it was sent.
	made     []history.Object
	removing int64
}

func (d *definer) run(ctx context.Context) {
	for ctx.Err() == nil {
		d.step(ctx)
		pace(ctx, upTo(d.rng, 2*d.pause))
	}
}

func (d *definer) cluster() string { return d.target.clusters[0] }

func (d *definer) name() string { return d.plural + "." + churnGroup }

func (d *definer) path(collection string) string {
	return "/clusters/" + d.cluster() + collection
}

func (d *definer) step(ctx context.Context) {
	found, crd := d.get(ctx)
	if found.Outcome == history.NotFound {
		d.refusals(ctx)
		select {
		case d.begun <- struct{}{}:
		default:
		}
		d.choose()
		d.write(ctx, history.Create, d.definition())
		return
	}
	if found.Outcome != history.OK || found.Terminating {
		return
	}
	d.use(ctx)
	switch dice := d.rng.IntN(10); {
	case dice < 3:
		kind := d.kind
		d.choose()
		if found.Established && dice > 0 {
			d.kind = kind // another one is refused
		}
		d.update(ctx, crd)
		d.use(ctx)
	case dice < 5:
		d.remove(ctx, crd)
	}
}

// choose draws what the definition is to be next.
func (d *definer) choose() {
	d.kind, d.variant = d.kinds[d.rng.IntN(len(d.kinds))], strconv.Itoa(d.rng.IntN(variants))
}

// variantOf reads the variant of a definition, which is below variants.
func variantOf(crd *apiextensionsv1.CustomResourceDefinition) int {
	var variant string
	_ = json.Unmarshal(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["variant"].Default.Raw, &variant)
	n, _ := strconv.Atoi(variant)
	return n
}

// definition is the one that was chosen. Its schema sets a default that tells it
// from others.
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

// refusals sends requests that leave nothing behind: the names that they claim
// are free afterwards.
func (d *definer) refusals(ctx context.Context) {
	d.choose()
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
	code, answer, err := d.conn.do(ctx, http.MethodPost, d.path(path), bad)
	if err != nil || code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == http.StatusForbidden {
		return
	}
	want := http.StatusUnprocessableEntity
	if path != definitionsPath {
		want = http.StatusCreated
	}
	if code != want {
		record(d.rec, &d.rec.history.Probes, history.Probe{Name: fmt.Sprintf("a bad definition, or a dry run of a good one: %s", answer), Code: code, Want: want})
	}
}

// ask sends a request about the definition and records the answer.
func (d *definer) ask(ctx context.Context, kind history.Kind, method, path string, body any) (*history.Definition, *apiextensionsv1.CustomResourceDefinition) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*opTimeout)
	defer cancel()
	r := &history.Definition{ID: d.rec.id(), Server: d.target.domain.Server, Cluster: d.cluster(), Name: d.name(), Kind: kind, Names: []string{d.plural, d.kind}, Start: d.rec.now()}
	if d.one {
		r.Variant = d.variant
	}
	code, answer, err := d.conn.do(ctx, method, d.path(path), body)
	r.End = d.rec.now()
	r.Outcome = history.Unknown
	crd := &apiextensionsv1.CustomResourceDefinition{}
	switch {
	case err != nil:
	case code == http.StatusNotFound && kind != history.Create:
		var status metav1.Status
		if json.Unmarshal(answer, &status) == nil && status.Details != nil && status.Details.Name == d.name() {
			r.Outcome = history.NotFound
		}
	case code == http.StatusUnprocessableEntity:
		r.Outcome = history.Refused
	case code == http.StatusConflict:
		r.Outcome = history.Conflict
	case code < http.StatusMultipleChoices && json.Unmarshal(answer, crd) == nil:
		r.Outcome = history.OK
		r.Established = apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
		r.Accepted = apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted)
		r.Terminating = crd.DeletionTimestamp != nil
		if kind != history.Delete {
			d.kind = crd.Spec.Names.Kind
			r.Names[1] = d.kind
			if d.one {
				r.Variant = strconv.Itoa(variantOf(crd))
			}
		}
	}
	record(d.rec, &d.rec.history.Definitions, r)
	return r, crd
}

func (d *definer) get(ctx context.Context) (*history.Definition, *apiextensionsv1.CustomResourceDefinition) {
	r, crd := d.ask(ctx, history.Get, http.MethodGet, definitionsPath+"/"+d.name(), nil)
	if r.Outcome == history.NotFound {
		d.purged(r.End)
	}
	return r, crd
}

func (d *definer) write(ctx context.Context, kind history.Kind, crd *apiextensionsv1.CustomResourceDefinition) *history.Definition {
	method, path := http.MethodPut, definitionsPath+"/"+d.name()
	if kind == history.Create {
		method, path = http.MethodPost, definitionsPath
	}
	r, _ := d.ask(ctx, kind, method, path, crd)
	return r
}

// update makes the definition that was chosen of crd. After a request without an
// answer, which may still have its effect, it does so again with another schema,
// until an answer shows that all requests before it have failed.
func (d *definer) update(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	for {
		wanted := d.definition()
		wanted.ResourceVersion = crd.ResourceVersion
		r := d.write(ctx, history.Update, wanted)
		if r.Outcome != history.OK {
			d.kind = crd.Spec.Names.Kind // it stays
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
		d.variant = strconv.Itoa((variantOf(crd) + 1) % variants)
	}
}

// remove deletes the definition and waits until it is gone, and with it its
// objects, or for as long as a test waits: faults may take longer. A request without an answer may still have its effect, when a process
// that was paused goes on: it is sent again until the definition is gone, and none
// can delete the next definition of that name.
func (d *definer) remove(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) {
	if d.removing == 0 {
		d.removing = d.rec.now()
	}
	this := metav1.NewUIDPreconditions(string(crd.UID))
	for again := true; again; pace(context.WithoutCancel(ctx), 20*time.Millisecond) {
		d.ask(ctx, history.Delete, http.MethodDelete, definitionsPath+"/"+d.name(), &metav1.DeleteOptions{Preconditions: this})
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

// purged records that the objects of the definition, which is gone, went with it.
func (d *definer) purged(end int64) {
	for _, o := range d.made {
		d.rec.op(&history.Op{ID: d.rec.id(), Client: d.id, Domain: d.target.domain, Key: o.Key, Kind: history.Delete, Expected: o.State, Start: d.removing, End: end, Outcome: history.OK})
	}
	d.made, d.removing = nil, 0
}

// use makes an object.
func (d *definer) use(ctx context.Context) {
	key := history.Key{Cluster: d.cluster(), Namespace: d.target.namespace, Name: fmt.Sprintf("made-%d-%d", d.id, d.n)}
	if code, outcome := d.create(ctx, key); outcome == history.Unknown && !unserved(code) {
		d.resolve(ctx, key)
	}
}

// unserved reports whether a request to make an object has none because there is no such resource, or it is
// of another kind.
func unserved(code int) bool {
	return code == http.StatusNotFound || code == http.StatusUnprocessableEntity
}

// create sends a request that makes an object.
func (d *definer) create(ctx context.Context, key history.Key) (int, history.Outcome) {
	u := d.beginUse()
	op := d.begin(history.Create, key, history.State{})
	code, answer := d.finishAs(ctx, op, http.MethodPost, d.target.collection(d.target.one(d.cluster())), d.bodyOf(op, d.kind))
	switch {
	case op.Outcome == history.OK:
		d.made = append(d.made, history.Object{Key: key, State: op.Result})
		var o struct{ Variant string }
		if d.one && json.Unmarshal(answer, &o) == nil {
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

// resolve finds out what became of a request to make an object that had no answer, so that the end of the
// object can be told. The request may still have its effect after a read that finds nothing: it is sent
// again until there is an object, and then it can have none.
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
			if code, outcome := d.create(ctx, key); outcome == history.OK || unserved(code) {
				return
			}
		case code == http.StatusNotFound:
			d.endUse(u, code)
			return
		}
		pace(context.WithoutCancel(ctx), 50*time.Millisecond)
	}
}

func (d *definer) bodyOf(op *history.Op, kind string) *object {
	b := d.body(op)
	b.Kind = kind
	return b
}

// gone deletes the definition, if there is one, and reports whether there is none.
func (d *definer) gone(ctx context.Context) bool {
	r, crd := d.get(ctx)
	if r.Outcome == history.OK && !r.Terminating {
		d.remove(ctx, crd)
		r, _ = d.get(ctx)
	}
	return r.Outcome == history.NotFound
}

// established makes the definition, if there is none, and reports whether it is
// established.
func (d *definer) established(ctx context.Context) bool {
	r, _ := d.get(ctx)
	if r.Outcome == history.NotFound {
		d.write(ctx, history.Create, d.definition())
	}
	return r.Outcome == history.OK && r.Established
}

// quiet ends the churn: all is deleted, and then each name is free.
func quiet(t *testing.T, definers []*definer) {
	t.Helper()
	eventually := func(d *definer, what string, is func(context.Context) bool) {
		require.Eventually(t, func() bool { return is(t.Context()) }, testTimeout, 50*time.Millisecond, "%s in %s, of kind %s, is %s", d.name(), d.cluster(), d.kind, what)
	}
	for _, d := range definers {
		eventually(d, "gone", d.gone)
	}
	for _, d := range definers {
		for _, d.kind = range d.kinds {
			eventually(d, "established", d.established)
			eventually(d, "gone", d.gone)
		}
	}
}

// define starts the definers of a shard, each with clients that watch what it
// makes, and returns them.
func (r *run) define(writing, ctx context.Context, writers, watchers *sync.WaitGroup, on *target) []*definer {
	var all []*definer
	for n, plural := range []string{"things", "gadgets"} {
		t := *on
		t.group, t.apiVersion, t.namespace, t.kind = "/apis/"+churnGroup+"/v1", churnGroup+"/v1", "default", "Thing"
		t.domain.Resource, t.clusters, t.fleeting, t.upserts = plural, on.clusters[:1], false, false
		d := &definer{writer: *r.newWriter(&t, false), plural: plural, kinds: []string{[]string{"Thing", "Gadget"}[n], "Both"}, one: r.replicas == nil, begun: r.begun}
		all = append(all, d)
		writers.Go(func() { d.run(writing) })
		w := &watcher{
			reader: reader{target: &t, rec: r.rec}, name: t.domain.Server + " " + plural, conn: t.direct,
			scope: t.one(t.clusters[0]), streaming: n == 1, rng: rand.New(rand.NewPCG(r.seed, uint64(d.id)<<32)),
		}
		watchers.Go(func() { w.run(ctx) })
	}
	return all
}

// killDefining kills a shard while a definition is being made there.
func (r *run) killDefining(name string) fault {
	return fault{name: "kill " + name + " while a definition is made", do: func(rng *rand.Rand) {
		select {
		case <-r.begun:
		case <-time.After(testTimeout):
			r.t.Errorf("no definition was made within %s", testTimeout)
		}
		pace(r.t.Context(), upTo(rng, 30*time.Millisecond))
		kill(r, r.cluster.Component(name), rng)
	}}
}

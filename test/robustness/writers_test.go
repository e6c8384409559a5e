package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/test/robustness/history"
)

const (
	// hot is the number of objects that are created and deleted, and stable that of objects that
	// are only updated.
	hot    = 6
	stable = 24
	// opTimeout is the timeout of an operation. Without a response, its outcome is unknown.
	opTimeout = 5 * time.Second
)

var colours = []string{"red", "blue"}

// writer is a client that writes to a target.
type writer struct {
	id     int
	target *target
	conn   *conn
	rec    *recorder
	rng    *rand.Rand
	pause  time.Duration

	n int
	// states are the last states that the writer observed.
	states map[history.Key]history.State
}

// repeat runs step with random pauses until ctx is done. The pauses avoid that CPU time is the bottleneck.
func repeat(ctx context.Context, rng *rand.Rand, pause time.Duration, step func(context.Context)) {
	for ctx.Err() == nil {
		step(ctx)
		pace(ctx, upTo(rng, 2*pause))
	}
}

// pace waits for a duration, or until ctx is done.
func pace(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (w *writer) step(ctx context.Context) {
	key := w.key(fmt.Sprintf("hot-%d", w.rng.IntN(hot)))
	state, known := w.states[key]
	switch random := w.rng.IntN(100); {
	case !known || random < 15:
		w.get(ctx, key)
	case state.Deleted:
		w.create(ctx, key)
	case random < 40:
		w.remove(ctx, key, state)
	case random < 60:
		key = w.key(fmt.Sprintf("stable-%d", w.rng.IntN(stable)))
		if state, known = w.states[key]; known {
			w.update(ctx, key, state)
		} else {
			w.get(ctx, key)
		}
	default:
		w.update(ctx, key, state)
	}
}

func (w *writer) key(name string) history.Key {
	t := w.target
	return history.Key{Shard: t.shardOf(), Cluster: t.clusters[w.rng.IntN(len(t.clusters))], Namespace: t.namespace, Name: name}
}

func (w *writer) create(ctx context.Context, key history.Key) *history.Op {
	op := w.begin(history.Create, key, history.State{})
	body := w.body(op)
	return w.finish(ctx, op, http.MethodPost, w.target.collection(w.target.one(key.Cluster)), body)
}

func (w *writer) update(ctx context.Context, key history.Key, state history.State) {
	op := w.begin(history.Update, key, state)
	body := w.body(op)
	body.Metadata.ResourceVersion = strconv.FormatUint(state.RV, 10)
	w.finish(ctx, op, http.MethodPut, w.target.object(key), body)
}

func (w *writer) remove(ctx context.Context, key history.Key, state history.State) {
	op := w.begin(history.Delete, key, state)
	uid, rv := types.UID(state.UID), strconv.FormatUint(state.RV, 10)
	w.finish(ctx, op, http.MethodDelete, w.target.object(key), &metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &rv},
	})
}

func (w *writer) get(ctx context.Context, key history.Key) {
	w.finish(ctx, w.begin(history.Get, key, history.State{}), http.MethodGet, w.target.object(key), nil)
}

func (w *writer) begin(kind history.Kind, key history.Key, expected history.State) *history.Op {
	w.n++
	return &history.Op{
		ID: w.rec.id(), Client: w.id, Domain: w.target.domain, Key: key, Kind: kind, Expected: expected, Upsert: w.target.upserts, ControllerWrites: w.target.controllerWrites,
		Value: history.Value(key, w.id, w.n),
	}
}

func (w *writer) body(op *history.Op) *object {
	return &object{APIVersion: w.target.apiVersion, Kind: w.target.kind, Metadata: metav1.ObjectMeta{
		Name:        op.Key.Name,
		Labels:      map[string]string{colour: w.colour()},
		Annotations: map[string]string{valueAnnotation: op.Value},
	}}
}

func (w *writer) colour() string { return colours[w.rng.IntN(len(colours))] }

// finish sends the request of an operation, and records its outcome.
func (w *writer) finish(ctx context.Context, op *history.Op, method, path string, body any) *history.Op {
	w.finishAs(ctx, op, method, path, body)
	return op
}

// finishAs is like finish, but returns the status code and the response.
func (w *writer) finishAs(ctx context.Context, op *history.Op, method, path string, body any) (int, []byte) {
	// The end of the test must not cancel a request that was sent.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if b, ok := body.(*object); ok && b == nil {
		body = nil
	}
	op.Start = w.rec.now()
	code, response, err := w.conn.do(ctx, method, path, body)
	op.End = w.rec.now()
	op.Outcome = outcome(op, code, response, err)
	if w.target.claimed && (code == http.StatusForbidden || code == http.StatusNotFound) {
		op.Outcome = history.Refused // the claims do not allow it, or the object does not exist
	}
	if code >= http.StatusBadRequest {
		w.rec.errorResponse(op.Key.Cluster, response)
	}
	if op.Outcome == history.OK && op.Kind != history.Delete {
		var o object
		if err := json.Unmarshal(response, &o); err == nil {
			if seen, err := o.historyObject(op.Domain); err == nil {
				op.Result = seen.State
			}
		}
	}
	w.rec.op(op)
	w.remember(op)
	return code, response
}

// remember stores the state of the object after an operation.
func (w *writer) remember(op *history.Op) {
	switch {
	case op.Outcome == history.OK && op.Kind == history.Delete, op.Outcome == history.NotFound:
		w.states[op.Key] = history.State{Deleted: true}
	case op.Outcome == history.OK:
		w.states[op.Key] = op.Result
	default:
		delete(w.states, op.Key)
	}
}

// concerns reports whether an error response is about the object with the name.
func concerns(response []byte, name string) bool {
	var status metav1.Status
	return json.Unmarshal(response, &status) == nil && status.Details != nil && status.Details.Name == name
}

// outcome returns the outcome of a response. An operation may have taken effect unless the response
// excludes it.
func outcome(op *history.Op, code int, response []byte, err error) history.Outcome {
	switch {
	case err != nil:
		return history.Unknown
	case code == http.StatusOK, code == http.StatusCreated:
		return history.OK
	case code == http.StatusNotFound && op.Kind != history.Create && concerns(response, op.Key.Name):
		return history.NotFound
	case code == http.StatusConflict && op.Kind == history.Create:
		return history.Exists
	case code == http.StatusConflict:
		return history.Conflict
	default:
		return history.Unknown
	}
}

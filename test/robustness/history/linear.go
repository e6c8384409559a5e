package history

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearTimeout limits the search for an order of the operations on one object. Histories of single
// objects are short, so that it is never reached.
const linearTimeout = 20 * time.Second

// absent is the value of an object that does not exist.
const absent = ""

// model is a register with the value of an object as its state. Values are unique, so that the
// value represents the required resource version.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{absent} },
	Step: func(state, input, _ any) []any {
		value, _ := state.(string)
		op, _ := input.(*Op)
		return step(value, op)
	},
	Equal: func(a, b any) bool { return a == b },
}).ToModel()

// step returns the possible states after an operation. If there are none, its outcome is
// impossible.
func step(value string, op *Op) []any {
	stays := []any{value}
	after, possible := value, false
	switch op.Kind {
	case Create:
		after, possible = op.Value, value == absent
	case Update:
		after, possible = op.Value, value == op.Expected.Value && value != absent || op.Upsert && value == absent
	case Delete:
		after, possible = absent, value != absent && value == op.Expected.Value
	case Get:
		possible = value == op.Result.Value
	}
	fits := false
	switch op.Outcome {
	case OK:
		if possible {
			return []any{after}
		}
		return nil
	case Unknown:
		if possible {
			return []any{value, after}
		}
		return stays
	case NotFound:
		fits = value == absent
	case Exists:
		fits = value != absent
	case Conflict:
		fits = value != op.Expected.Value || op.ControllerWrites
	case Refused:
		fits = true
	}
	if fits {
		return stays
	}
	return nil
}

// checkLinearizable checks that one order of the operations on each object explains all responses, and
// agrees with real time.
func checkLinearizable(rep *reporter, ops []*Op) {
	type register struct {
		domain Domain
		key    Key
	}
	byObject := map[register][]porcupine.Operation{}
	for _, op := range ops {
		if op.Kind == Get && op.Outcome == Unknown {
			continue
		}
		end := op.End
		if op.Outcome == Unknown {
			end = math.MaxInt64
		}
		r := register{op.Domain, op.Key}
		byObject[r] = append(byObject[r], porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Start, Return: end})
	}
	for r, operations := range byObject {
		// In the model, a client ends with an operation that never returns.
		next := 1_000_000
		for i := range operations {
			if operations[i].Return == math.MaxInt64 {
				operations[i].ClientId = next
				next++
			}
		}
		slices.SortFunc(operations, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
		if porcupine.CheckOperationsTimeout(model, operations, linearTimeout) != porcupine.Ok {
			rep.report(Linearizable, text(r.domain.Server+" "+r.domain.Resource), "no order explains the responses to the operations on %s/%s", r.key.Cluster, r.key.Name)
		}
	}
}

package history

import (
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearTimeout bounds the search for an order of the operations on one object.
// Histories of an object are short, so that it is never reached.
const linearTimeout = 20 * time.Second

// absent is the value of an object that does not exist.
const absent = ""

// model is an object as a register: its state is its value, and values are
// unique, so that what requires a resource version requires a value.
var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{absent} },
	Step: func(state, input, _ any) []any {
		value, _ := state.(string)
		op, _ := input.(*Op)
		return step(value, op)
	},
	Equal: func(a, b any) bool { return a == b },
}).ToModel()

// step returns the states to which an operation with its outcome can lead; none
// means that the outcome is impossible.
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
		fits = value != op.Expected.Value || op.Minded
	case Refused:
		fits = true
	}
	if fits {
		return stays
	}
	return nil
}

// checkLinearizable holds that there is one order of the operations on each
// object that explains all answers, and agrees with real time.
func checkLinearizable(ops []*Op) []Violation {
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
	var violations []Violation
	for r, operations := range byObject {
		// A client whose operation never returned goes on as another one.
		next := 1_000_000
		for i := range operations {
			if operations[i].Return == math.MaxInt64 {
				operations[i].ClientId = next
				next++
			}
		}
		slices.SortFunc(operations, func(a, b porcupine.Operation) int {
			if a.Call < b.Call {
				return -1
			}
			return 1
		})
		if porcupine.CheckOperationsTimeout(model, operations, linearTimeout) != porcupine.Ok {
			violations = append(violations, Violation{Linearizable, r.domain.Server + " " + r.domain.Resource,
				"no order explains the answers to the operations on " + r.key.Cluster + "/" + r.key.Name})
		}
	}
	return violations
}

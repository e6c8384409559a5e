package patterns

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/request/quantities"
)

const (
	// compiled is the prefix of the overloads of calls that compile their pattern at evaluation.
	compiled = "compiled_"
	// compileCost is the cost of compiling an instruction, and parseCost the cost of parsing a byte, in CEL
	// units.
	compileCost, parseCost = 10, 2
	//reference:none
	sizesKept, maxKeptLength = 4096, 1024
)

// init limits the regular expressions of all CEL expressions of the process. It changes the base environment,
// because the validator of custom resources and the webhook dispatcher accept no other one.
func init() {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	bounded, err := base.Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		ProgramOptions:    programOptions(),
	})
	if err != nil {
		panic(fmt.Sprintf("limiting the regular expressions of CEL expressions: %v", err))
	}
	*base = *bounded
}

// functions are the functions with a regular expression as second argument, by overload.
var functions = map[string]struct {
	name string
	run  func(re *regexp.Regexp, text string, args []ref.Val) ref.Val
}{
	overloads.Matches:            {"matches", matches},
	overloads.MatchesString:      {"matches", matches},
	"string_find_string":         {"find", find},
	"string_find_all_string":     {"findAll", findAll},
	"string_find_all_string_int": {"findAll", findAll},
}

// programOptions limits the size of patterns, and makes the cost of their evaluation depend on their programs.
func programOptions() []cel.ProgramOption {
	constants := make([]*interpreter.RegexOptimization, 0, len(functions))
	trackers := make([]interpreter.CostTrackerOption, 0, 2*len(functions))
	for overload, f := range functions {
		constants = append(constants, &interpreter.RegexOptimization{Function: f.name, OverloadID: overload, RegexIndex: 1, Factory: constantCall})
		trackers = append(trackers,
			interpreter.OverloadCostTracker(overload, func(args []ref.Val, result ref.Val) *uint64 { return charge(args, result, false) }),
			interpreter.OverloadCostTracker(compiled+overload, func(args []ref.Val, result ref.Val) *uint64 { return charge(args, result, true) }),
		)
	}
	return []cel.ProgramOption{cel.CustomDecoratorV2(compilingCall), cel.OptimizeRegex(constants...), cel.CostTrackerOptions(trackers...)}
}

// constantCall returns a call with a constant pattern, compiled once. Old patterns may exceed MaxSize.
func constantCall(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
	if n := Size(pattern); n > MaxTotal {
		return nil, tooLarge(n, MaxTotal)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, err
	}
	f := functions[call.OverloadID()]
	return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
		text, ok := stringAt(args, 0)
		if !ok {
			return types.NoSuchOverloadErr()
		}
		if err := checkCost(text, pattern); err != nil {
			return err
		}
		return f.run(re, text, args)
	}), nil
}

// compilingCall replaces a call with a pattern that is not constant, or that parses a quantity.
func compilingCall(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := i.(interpreter.InterpretableCall)
	if !ok {
		return i, nil
	}
	overload := call.OverloadID()
	if overload == "is_quantity_string" || overload == "string_to_quantity" {
		return interpreter.NewCall(call.ID(), call.Function(), overload, call.Args(), func(args ...ref.Val) ref.Val {
			text, isText := stringAt(args, 0)
			quantity, err := quantities.Parse(text)
			switch {
			case !isText:
				return types.NoSuchOverloadErr()
			case overload == "is_quantity_string":
				return types.Bool(err == nil)
			case err != nil:
				return types.WrapErr(err)
			}
			return apiservercel.Quantity{Quantity: &quantity}
		}), nil
	}
	f, ok := functions[overload]
	if !ok {
		return i, nil
	}
	if _, isConstant := call.Args()[1].(interpreter.InterpretableConst); isConstant {
		return i, nil
	}
	return interpreter.NewCall(call.ID(), call.Function(), compiled+overload, call.Args(), func(args ...ref.Val) ref.Val {
		text, isText := stringAt(args, 0)
		pattern, isPattern := stringAt(args, 1)
		if !isText || !isPattern {
			return types.NoSuchOverloadErr()
		}
		if n := cachedSize(pattern); n > MaxSize {
			return types.WrapErr(tooLarge(n, MaxSize))
		}
		if err := checkCost(text, pattern); err != nil {
			return err
		}
		re, err := regexp.Compile(pattern)
		if err != nil {
			return types.WrapErr(err)
		}
		return f.run(re, text, args)
	}), nil
}

func stringAt(args []ref.Val, i int) (string, bool) {
	if i >= len(args) {
		return "", false
	}
	text, ok := args[i].Value().(string)
	return text, ok
}

func matches(re *regexp.Regexp, text string, _ []ref.Val) ref.Val {
	return types.Bool(re.MatchString(text))
}

func find(re *regexp.Regexp, text string, _ []ref.Val) ref.Val {
	return types.String(re.FindString(text))
}

var errMatches = errors.New("the regular expression has too many matches in a text of this length")

// findAll may read the rest of the text for each match, so the number of matches is limited by the cost of one pass.
func findAll(re *regexp.Regexp, text string, args []ref.Val) ref.Val {
	n := int64(-1)
	if len(args) > 2 {
		var ok bool
		if n, ok = args[2].Value().(int64); !ok {
			return types.NoSuchOverloadErr()
		}
	}
	most := int64(celconfig.PerCallLimit / cost(text, args[1].Value().(string))) //nolint:forcetypeassert // the caller has checked it
	if n >= 0 && n <= most {
		return types.NewStringList(types.DefaultTypeAdapter, re.FindAllString(text, int(n)))
	}
	found := re.FindAllString(text, int(most)+1)
	if int64(len(found)) > most {
		return types.WrapErr(errMatches)
	}
	return types.NewStringList(types.DefaultTypeAdapter, found)
}

// cost returns the cost of one pass of a pattern over a text. It equals the cost in CEL unless the
// program has more instructions than the pattern has characters.
func cost(text, pattern string) uint64 {
	program := max(utf8.RuneCountInString(pattern), cachedSize(pattern))
	perText := math.Ceil(float64(1+utf8.RuneCountInString(text)) * common.StringTraversalCostFactor)
	return max(1, uint64(perText*math.Ceil(float64(program)*common.RegexStringLengthCostFactor)))
}

// checkCost returns an error if one pass costs more than the limit of an expression. If costs are
// tracked, the evaluation ends before the error is visible.
func checkCost(text, pattern string) ref.Val {
	if cost(text, pattern) > celconfig.PerCallLimit {
		return types.NewErr("the regular expression is too large for a text of %d bytes", len(text))
	}
	return nil
}

func charge(args []ref.Val, result ref.Val, compiles bool) *uint64 {
	text, isText := stringAt(args, 0)
	pattern, isPattern := stringAt(args, 1)
	if !isText || !isPattern {
		return nil
	}
	sum := uint64(0)
	if compiles {
		size := cachedSize(pattern)
		sum = compileCost*uint64(min(size, MaxSize)) + parseCost*uint64(len(pattern)) //nolint:gosec // not negative
		if size > MaxSize {
			return &sum // it was not compiled
		}
	}
	passes := uint64(1)
	switch result := result.(type) {
	case traits.Lister:
		if n, ok := result.Size().(types.Int); ok {
			passes += uint64(n) //nolint:gosec // a length is not negative
		}
	case *types.Err:
		if errors.Is(result, errMatches) {
			passes = celconfig.PerCallLimit + 1
		}
	}
	sum += passes * cost(text, pattern)
	return &sum
}

var sizes = lru.New(sizesKept)

func cachedSize(pattern string) int {
	if size, ok := sizes.Get(pattern); ok {
		return size.(int) //nolint:forcetypeassert // only this function adds entries
	}
	n := Size(pattern)
	if len(pattern) <= maxKeptLength {
		sizes.Add(pattern, n)
	}
	return n
}

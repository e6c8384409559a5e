package conversions

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// maxResultBytes limits the results of all rules of one conversion, approximately. A request may have the same size.
//
//reference:limit request | APIConversion of an object: size of the results | 422 for writes, otherwise 500
const maxResultBytes = 3 << 20

// valueBytes is the minimum size that is counted for a value.
const valueBytes = 8

var errTooLarge = fmt.Errorf("the rules produce more than %d bytes for one object", maxResultBytes)

// budget is the remaining budget of one conversion.
type budget struct {
	cost  uint64
	bytes int
}

func (b *budget) spend(cost uint64) error {
	if cost > b.cost {
		return fmt.Errorf("the rules cost more than %d for one object", costLimit)
	}
	b.cost -= cost
	return nil
}

func (b *budget) take(bytes int) error {
	if b.bytes -= valueBytes + bytes; b.bytes < 0 {
		return errTooLarge
	}
	return nil
}

// toJSON converts a CEL value to JSON. Values that are small in memory may be large in JSON, because CEL
// concatenates lists without copying them.
func (b *budget) toJSON(value ref.Val) (any, error) {
	if err := b.take(0); err != nil {
		return nil, err
	}
	switch v := value.(type) {
	case types.Null, nil:
		return nil, nil
	case types.Bool:
		return bool(v), nil
	case types.Int:
		return int64(v), nil
	case types.Uint:
		if v > math.MaxInt64 {
			return nil, fmt.Errorf("the transformation returns %d, which exceeds a signed 64-bit integer", v)
		}
		return int64(v), nil
	case types.Double:
		if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
			return f, nil
		}
		return nil, errors.New("the transformation returns a number that JSON cannot represent")
	case types.String:
		return string(v), b.take(len(v))
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), b.take(len(v))
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return v.String(), nil
	case *types.Optional:
		if v.HasValue() {
			return b.toJSON(v.GetValue())
		}
		return nil, nil
	case *types.Err:
		return nil, fmt.Errorf("the transformation failed: %w", v)
	case traits.Mapper:
		if part, ok := v.Value().(map[string]any); ok {
			return b.copy(part) // a part of the object, whose names are escaped in CEL
		}
		return b.mapToJSON(v)
	case traits.Lister:
		return b.listToJSON(v)
	default:
		return nil, fmt.Errorf("the transformation returns a %s, which objects cannot contain", value.Type().TypeName())
	}
}

func (b *budget) listToJSON(list traits.Lister) (any, error) {
	out := []any{}
	for it := list.Iterator(); it.HasNext() == types.True; {
		item, err := b.toJSON(it.Next())
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

func (b *budget) mapToJSON(m traits.Mapper) (any, error) {
	out := map[string]any{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key, ok := it.Next().(types.String)
		if !ok {
			return nil, errors.New("the transformation returns a map with keys that are not strings, which objects cannot contain")
		}
		if err := b.take(len(key)); err != nil {
			return nil, err
		}
		item, err := b.toJSON(m.Get(key))
		if err != nil {
			return nil, err
		}
		out[string(key)] = item
	}
	return out, nil
}

func (b *budget) copy(part any) (any, error) {
	switch p := part.(type) {
	case map[string]any:
		out := make(map[string]any, len(p))
		for key, value := range p {
			if err := b.take(len(key)); err != nil {
				return nil, err
			}
			var err error
			if out[key], err = b.copy(value); err != nil {
				return nil, err
			}
		}
		return out, nil
	case []any:
		out := make([]any, len(p))
		for i, value := range p {
			if err := b.take(0); err != nil {
				return nil, err
			}
			var err error
			if out[i], err = b.copy(value); err != nil {
				return nil, err
			}
		}
		return out, nil
	case string:
		return p, b.take(len(p))
	case nil, bool, int64, float64:
		return p, nil
	default:
		return nil, fmt.Errorf("objects cannot contain a %T", part)
	}
}

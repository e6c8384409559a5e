package merge

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// part is the list of one shard. Members before the elements are read when it is opened, and others after them.
type part struct {
	shard   Shard
	res     *http.Response
	decoder *json.Decoder
	// request is the request of the client.
	request *Request
	// array is the name of the array: items, or rows of a Table.
	array string
	// before and after are the other members, without the metadata.
	before, after []jsonMember
	metadata      metav1.ListMeta
	// raw is the metadata including fields that a ListMeta does not have.
	raw map[string]json.RawMessage
}

// jsonMember is a member of a JSON object.
type jsonMember struct {
	name  string
	value json.RawMessage
}

// openPart sends a list request to a shard. The caller must close the part.
func (r *Request) openPart(ctx context.Context, s Shard, query url.Values) (*part, error) {
	res, err := s.Get(ctx, query) //nolint:bodyclose // closed by part.close
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if err := check(res); err != nil {
		return nil, err
	}
	p := &part{shard: s, res: res, request: r, decoder: json.NewDecoder(bufio.NewReaderSize(res.Body, copyBytes))}
	token, err := p.decoder.Token()
	if err == nil && token != json.Delim('{') {
		err = errJSON
	}
	if err == nil {
		p.before, err = p.members()
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return p, nil
}

func (p *part) close() { _ = p.res.Body.Close() }

// members reads the members up to the elements or the end.
func (p *part) members() (read []jsonMember, err error) {
	for p.decoder.More() {
		token, err := p.decoder.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		if p.array == "" && (name == "items" || name == "rows" && p.request.Tables) {
			token, err := p.decoder.Token()
			if err != nil {
				return nil, err
			}
			if token != nil { // null is an empty list
				p.array = name
				return read, nil
			}
			continue
		}
		var value json.RawMessage
		if err := p.decoder.Decode(&value); err != nil {
			return nil, err
		}
		if name != "metadata" {
			read = append(read, jsonMember{name, value})
			continue
		}
		if err := json.Unmarshal(value, &p.metadata); err != nil {
			return nil, err
		}
		if err := json.Unmarshal(value, &p.raw); err != nil {
			return nil, err
		}
	}
	_, err = p.decoder.Token()
	return read, err
}

// each calls visit for each element, and then reads the other members.
func (p *part) each(visit func(json.RawMessage) error) error {
	if p.array == "" {
		return nil
	}
	var element json.RawMessage
	for p.decoder.More() {
		if err := p.decoder.Decode(&element); err != nil {
			return err
		}
		if err := visit(element); err != nil {
			return err
		}
	}
	if _, err := p.decoder.Token(); err != nil {
		return err
	}
	var err error
	p.after, err = p.members()
	return err
}

// revision returns the version of the list after it was read.
func (p *part) revision() (uint64, error) {
	revision, err := strconv.ParseUint(p.metadata.ResourceVersion, 10, 64)
	if err != nil || revision == 0 {
		return 0, fmt.Errorf("%w: shard %s returned a list with version %q", errJSON, p.shard.Name, p.metadata.ResourceVersion)
	}
	return revision, nil
}

// head returns the version at which a shard currently serves a query.
func (r *Request) head(ctx context.Context, s Shard, query url.Values) (uint64, error) {
	p, err := r.openPart(ctx, s, query)
	if err != nil {
		return 0, err
	}
	defer p.close()
	if err := p.each(func(json.RawMessage) error { return nil }); err != nil {
		return 0, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return p.revision()
}

// versioned returns an object of a shard with a merged version. It is a list item, or a Table row with an object.
func versioned(raw []byte, prefix []string, shard uint32, v Vector) ([]byte, error) {
	spans := versionIn(raw, prefix...)
	if len(spans) == 0 {
		return raw, nil // a row without an object
	}
	version, err := spans[0].plain(raw)
	if err != nil {
		return nil, err
	}
	if version == "" || version == "0" {
		return raw, nil
	}
	revision, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is not a resource version", errJSON, version)
	}
	return splice(raw, spans, v.With(shard, revision).String()), nil
}

func columnsOf(fields []jsonMember) json.RawMessage {
	for _, f := range fields {
		if f.name == columnDefinitions {
			return f.value
		}
	}
	return nil
}

// copyBytes is the size of the buffers for reading and writing lists.
const copyBytes = 32 << 10

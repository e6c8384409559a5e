package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// stream is an open watch whose events are looked at as lines of JSON, so that the client
// takes little of the processors that it shares with the server.
type stream struct {
	body  io.ReadCloser
	lines *bufio.Reader
}

// openStream opens a watch from a resource version on.
func openStream(ctx context.Context, c *rest.RESTClient, path, version string) (*stream, error) {
	body, err := c.Get().AbsPath(path).Param("watch", "true").Param("resourceVersion", version).SetHeader("Accept", "application/json").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", path, err)
	}
	const longestLine = 1 << 20
	return &stream{body, bufio.NewReaderSize(body, longestLine)}, nil
}

func (s *stream) close() { _ = s.body.Close() } // nothing is expected of it any more

// take reads until count returned true of so many events.
func (s *stream) take(events int, count func(line []byte) bool) error {
	for told := 0; told < events; {
		line, err := s.lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("the watch has ended after %d of %d events: %w", told, events, err)
		}
		if kindOf(line) == watch.Error {
			return fmt.Errorf("the watch has failed after %d of %d events: %s", told, events, line)
		}
		if count(line) {
			told++
		}
	}
	return nil
}

// kindOf returns the type of an event.
func kindOf(line []byte) watch.EventType {
	rest, ok := bytes.CutPrefix(line, []byte(`{"type":"`))
	kind, _, found := bytes.Cut(rest, []byte(`"`))
	if !ok || !found {
		return ""
	}
	return watch.EventType(kind)
}

// versionOf returns the resource version of a list.
func versionOf(ctx context.Context, c *rest.RESTClient, path string) (string, error) {
	var list metav1.PartialObjectMetadataList
	data, err := c.Get().AbsPath(path).Param("limit", "1").SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		return "", fmt.Errorf("reading the resource version of %s: %w", path, err)
	}
	return list.ResourceVersion, nil
}

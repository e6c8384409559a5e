package dev

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
)

const (
	// maxLogMegabytes is the size at which a log is renamed to <name>-<time>.log. Only one renamed file is kept.
	maxLogMegabytes = 16

	// maxLineBytes is the maximum length of a line; longer lines are split.
	maxLineBytes = 64 << 10

	// tailLines is the number of lines that are kept to explain why a component exited.
	tailLines = 50
)

// componentLog writes the output of one component to a file, and optionally line by line to the terminal. Writes
// never fail, so that a full disk does not affect the component. The first failure is reported.
type componentLog struct {
	onLine  func(line string) // optional
	onError func(error)

	mu      sync.Mutex
	file    *lumberjack.Logger
	partial []byte
	tail    []string
	failed  bool
}

// openLog opens a log for appending and writes a line at the beginning of this run.
func openLog(path string, onLine func(string), onError func(error)) (*componentLog, error) {
	l := &componentLog{
		onLine:  onLine,
		onError: onError,
		file:    &lumberjack.Logger{Filename: path, MaxSize: maxLogMegabytes, MaxBackups: 1},
	}
	_, err := l.file.Write([]byte("--- started by shardplane dev at " + time.Now().Format(time.RFC3339) + "\n"))
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	return l, nil
}

// Write implements io.Writer for the output of the component.
func (l *componentLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	end := bytes.LastIndexByte(l.partial, '\n') + 1
	if end == 0 && len(l.partial) < maxLineBytes {
		return len(p), nil
	}
	if end == 0 {
		l.partial = append(l.partial, '\n')
		end = len(l.partial)
	}
	l.lines(l.partial[:end])
	l.partial = append(l.partial[:0], l.partial[end:]...)
	return len(p), nil
}

func (l *componentLog) lines(block []byte) {
	if _, err := l.file.Write(block); err != nil && !l.failed {
		l.failed = true
		l.onError(fmt.Errorf("log %s is incomplete: %w", l.file.Filename, err))
	}
	for line := range bytes.Lines(block) {
		text := strings.TrimRight(string(line), "\r\n")
		if text == "" {
			continue
		}
		l.tail = append(l.tail, text)
		if l.onLine != nil {
			l.onLine(text)
		}
	}
	if excess := len(l.tail) - tailLines; excess > 0 {
		l.tail = append(l.tail[:0], l.tail[excess:]...)
	}
}

// lastMessage returns, and forgets, the line that most likely explains why the component exited, or "".
func (l *componentLog) lastMessage() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	tail := l.tail
	if len(l.partial) > 0 {
		tail = append(tail, strings.TrimSpace(string(l.partial)))
	}
	l.tail = nil
	for _, line := range tail { // a crash of a Go program begins with its cause
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
	}
	if len(tail) == 0 {
		return ""
	}
	return tail[len(tail)-1]
}

// reason removes the name of the command from a log message.
func reason(words string) string {
	if command, rest, ok := strings.Cut(words, ": "); ok && strings.HasPrefix(command, "shardplane ") {
		return rest
	}
	return words
}

// close writes an incomplete last line and closes the file.
func (l *componentLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.lines(append(l.partial, '\n'))
		l.partial = nil
	}
	return l.file.Close()
}

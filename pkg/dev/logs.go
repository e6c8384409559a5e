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
	// maxLogMegabytes is the size at which a log is renamed to <name>-<time>.log, and the
	// one that was renamed before is removed.
	maxLogMegabytes = 16

	// maxLineBytes is the longest line that is kept in one piece.
	maxLineBytes = 64 << 10

	// tailLines is how many lines are kept to explain why a component died.
	tailLines = 50
)

// componentLog takes what one component writes: it goes into a file, and line
// by line to the terminal if wanted. Writes never fail, because a component
// must not suffer from a full disk of its log; the first failure is reported.
type componentLog struct {
	onLine  func(line string) // optional
	onError func(error)

	mu      sync.Mutex
	file    *lumberjack.Logger
	partial []byte
	tail    []string
	failed  bool
}

// openLog opens a log for appending and marks where this run begins.
func openLog(path string, onLine func(string), onError func(error)) (*componentLog, error) {
	l := &componentLog{
		onLine:  onLine,
		onError: onError,
		file:    &lumberjack.Logger{Filename: path, MaxSize: maxLogMegabytes, MaxBackups: 1},
	}
	_, err := l.file.Write([]byte("--- started by shardplane dev at " + time.Now().Format(time.RFC3339) + "\n"))
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return l, nil
}

// Write takes output of the component. It implements io.Writer.
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

// lines takes complete lines.
func (l *componentLog) lines(block []byte) {
	l.save(block)
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

// save writes complete lines to the file.
func (l *componentLog) save(block []byte) {
	_, err := l.file.Write(block)
	l.report(err)
}

func (l *componentLog) report(err error) {
	if err == nil || l.failed {
		return
	}
	l.failed = true
	l.onError(fmt.Errorf("log %s is incomplete: %w", l.file.Filename, err))
}

// lastWords returns the line that most likely says why the component died;
// empty where it wrote nothing. The next process starts with no words.
func (l *componentLog) lastWords() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	tail := l.tail
	if len(l.partial) > 0 {
		tail = append(tail, strings.TrimSpace(string(l.partial)))
	}
	l.tail = nil
	for _, line := range tail { // a Go crash prints its cause first
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
	}
	if len(tail) == 0 {
		return ""
	}
	return tail[len(tail)-1]
}

// reason takes the name of the command off the last words of a component.
func reason(words string) string {
	if command, rest, ok := strings.Cut(words, ": "); ok && strings.HasPrefix(command, "shardplane ") {
		return rest
	}
	return words
}

// close writes what is left and closes the file.
func (l *componentLog) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.partial) > 0 {
		l.lines(append(l.partial, '\n'))
		l.partial = nil
	}
	return l.file.Close()
}

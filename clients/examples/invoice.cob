      * A job in COBOL: a program without any queue code.
      *
      *     cobc -x -o invoice invoice.cob
      *     qsidecar work invoices --payload-file --result \
      *         --dead-on 65 -- ./invoice
      *
      * Its argument is the path of a file with the payload: lines of
      * a customer (10 characters) and an amount in cents (9 digits).
      * It displays the total, which becomes the job's result. Its
      * return code settles the job: 0 done, 65 dead (an invalid
      * payload), 75 snooze, any other failed.
       IDENTIFICATION DIVISION.
       PROGRAM-ID. INVOICE.
       ENVIRONMENT DIVISION.
       INPUT-OUTPUT SECTION.
       FILE-CONTROL.
           SELECT PAYLOAD ASSIGN TO PAYLOAD-PATH
               ORGANIZATION IS LINE SEQUENTIAL
               FILE STATUS IS PAYLOAD-STATUS.
       DATA DIVISION.
       FILE SECTION.
       FD  PAYLOAD.
       01  INVOICE-LINE.
           05  CUSTOMER        PIC X(10).
           05  CENTS           PIC 9(9).
       WORKING-STORAGE SECTION.
       01  PAYLOAD-PATH        PIC X(1024).
       01  PAYLOAD-STATUS      PIC XX.
           88  NO-MORE-LINES   VALUE "10".
       01  LINE-NUMBER         PIC 9(6) VALUE 0.
       01  TOTAL               PIC 9(12) VALUE 0.
       PROCEDURE DIVISION.
       WORK.
           ACCEPT PAYLOAD-PATH FROM ARGUMENT-VALUE
           OPEN INPUT PAYLOAD
           IF PAYLOAD-STATUS NOT = "00"
               DISPLAY "the payload cannot be read, file status "
                   PAYLOAD-STATUS UPON SYSERR
               MOVE 75 TO RETURN-CODE
               STOP RUN
           END-IF
           PERFORM UNTIL NO-MORE-LINES
               READ PAYLOAD
                   NOT AT END PERFORM ADD-LINE
               END-READ
           END-PERFORM
           CLOSE PAYLOAD
           DISPLAY TOTAL
           STOP RUN.
       ADD-LINE.
           ADD 1 TO LINE-NUMBER
           IF CENTS IS NOT NUMERIC
               DISPLAY "line " LINE-NUMBER " has no amount"
                   UPON SYSERR
               CLOSE PAYLOAD
               MOVE 65 TO RETURN-CODE
               STOP RUN
           END-IF
           ADD CENTS TO TOTAL.
